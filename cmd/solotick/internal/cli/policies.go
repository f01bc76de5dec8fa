package cli

import (
	"strings"

	"github.com/solotick/solotick/store"
)

func namesZone(cron string) bool {
	return strings.HasPrefix(cron, "TZ=") || strings.HasPrefix(cron, "CRON_TZ=")
}

// What the scheduler allows a queue job that does not say otherwise, and the
// attempts beyond it that dead owners may use up before the row is given up.
const (
	queueAttempts = 25
	crashAttempts = 9
)

// prepareRow gives a queue row the policies that the file has for its kind: they
// travel with the row, so that any worker can judge it.
func (s *site) prepareRow(row *store.NewExecution) error {
	row.MaxAttempts = queueAttempts + crashAttempts
	j := s.job(row.Key.Job)
	switch {
	case j == nil:
		return nil // defined in code, or in another file
	case !j.Queue:
		return usagef("KIND %q is a cron job of %s: a queue job says queue: true", row.Key.Job, s.file)
	}
	if j.Retry.Attempts > 0 {
		row.MaxAttempts = j.Retry.Attempts + crashAttempts
	}
	row.Timeout = j.Timeout
	switch j.OnCrash {
	case "mark_failed":
		row.OnCrash = store.CrashFail
	case "next_tick":
		row.OnCrash = store.CrashNextTick
	case "indeterminate":
		row.OnCrash = store.CrashIndeterminate
	}
	return nil
}
