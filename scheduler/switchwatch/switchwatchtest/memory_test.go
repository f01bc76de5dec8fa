package switchwatchtest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/scheduler/switchwatch/switchwatchtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	switchwatchtest.Run(t, func(*testing.T) switchwatchtest.Harness {
		m := switchwatchtest.NewMemory()
		return switchwatchtest.Harness{Open: func(testing.TB) switchwatch.Centre { return m }}
	})
}
