package idempotent_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
)

func TestMain(m *testing.M) {
	if stage := os.Getenv(stageEnv); stage != "" {
		if err := callOnce(stage); err != nil {
			fmt.Println("error:", err)
		}
		return
	}
	// GORM's cache of prepared statements has a goroutine that nothing ends.
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}
