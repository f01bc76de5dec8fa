// Command solotick runs singleton tasks, cron jobs and queue jobs that many
// replicas know about and exactly one of them runs, and the tools to look after
// them. With no services at hand it keeps store and locks in one SQLite file.
package main

import (
	"os"
	_ "time/tzdata" // zones for hosts without any

	"github.com/redis/go-redis/v9/logging"

	"github.com/solotick/solotick/cmd/solotick/internal/cli"
)

func main() {
	logging.Disable() // what the Redis client prints comes back as an error too
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
