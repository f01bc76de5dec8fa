//go:build linux

package testenv_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child(m)
	}
	goleak.VerifyTestMain(testenv.Main(m))
}
