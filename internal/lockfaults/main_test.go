package lockfaults

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(processEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, "process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The tests wait for the ends of leases most of the time, but judge whole processes:
	// no more than two backends at a time, whatever the command line says.
	flag.Parse()
	if err := flag.Set("test.parallel", "2"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(testenv.Main(m))
}
