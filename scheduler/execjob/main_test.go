//go:build unix

package execjob

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// workerEnv makes the test binary a worker that runs one command, so that a test
// can kill it.
const workerEnv = "EXECJOB_TEST_WORKER"

func TestMain(m *testing.M) {
	if script := os.Getenv(workerEnv); script != "" {
		c, err := newCommand(Config{Command: []string{"sh", "-c", script}}, Deps{})
		if err == nil {
			err = c.run(context.Background(), &fakeRun{})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
