package leadertest_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(replicaEnv); path != "" {
		replica(path)
		return
	}
	goleak.VerifyTestMain(m)
}
