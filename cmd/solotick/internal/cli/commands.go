package cli

import "github.com/spf13/cobra"

// commands are the commands of the binary, in the order of the help text.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newDemo(),
		newDemoWorker(),
		newRun(),
		newLock(),
		newOnce(),
		newEnqueue(),
		newJobs(),
		newRuns(),
		newExplain(),
		newRetry(),
		newPrune(),
		newLocks(),
		newLeader(),
		newDegrade(),
		newNext(),
		newConfig(),
		newMigrate(),
		newDoctor(),
		newVersion(),
		newCompletion(),
	}
}
