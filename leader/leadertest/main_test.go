package leadertest_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(replicaEnv); path != "" {
		replica(path)
		return
	}
	// The tests on servers wait most of the time, each with a few electors.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")) // a cache of GORM's has a goroutine that nothing ends
}
