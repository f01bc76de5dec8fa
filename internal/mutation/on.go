//go:build mutation

package mutation

import "os"

var broken = os.Getenv("SOLOTICK_MUTATION")

// On reports whether the named guard is the one that SOLOTICK_MUTATION breaks.
func On(guard string) bool { return guard == broken }
