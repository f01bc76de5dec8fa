package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// processors is the processor time that client and server have used. They share the
// processors of the machine, so that it is the sum which bounds the throughput.
type processors struct{ client, server time.Duration }

func (p processors) plus(q processors) processors {
	return processors{p.client + q.client, p.server + q.server}
}

func (p processors) minus(q processors) processors {
	return processors{p.client - q.client, p.server - q.server}
}

// processorTime is that of this process and of the server, which is 0 where the system
// does not tell it by the nanosecond.
func processorTime(server int) (p processors) {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) == nil {
		p.client = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", server)) // the pattern is well formed
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		var ns int64
		if _, serr := fmt.Fscan(strings.NewReader(string(text)), &ns); err == nil && serr == nil {
			p.server += time.Duration(ns)
		}
	}
	return p
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
