package leadertest_test

import (
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
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")) // a cache of GORM's has a goroutine that nothing ends
}
