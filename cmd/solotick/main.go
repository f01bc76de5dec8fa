// Command solotick runs singleton tasks, cron jobs and queue jobs that many
// replicas know about and exactly one of them runs, and the tools to look after
// them. With no services at hand it keeps store and locks in one SQLite file.
package main

import (
	"os"
	_ "time/tzdata" // zones for hosts without any

	"github.com/solotick/solotick/cmd/solotick/internal/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
