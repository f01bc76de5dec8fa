package lockfaults

import (
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// write is an effect on the resource that belongs to the key: a file that all
// processes share. It is refused where a higher fence has written before. At is when,
// while nobody else could write.
func write(folder, key string, fence int64) (ok bool, at int64, err error) {
	f, err := os.OpenFile(filepath.Join(folder, "resource-"+hex.EncodeToString([]byte(key))), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // which unlocks it
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return false, 0, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return false, 0, err
	}
	high, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // a new file has 0
	at = now()
	if fence < high {
		return false, at, nil
	}
	// Of one length, so that a writer that is killed half-way leaves a number.
	_, err = f.WriteAt([]byte(leadingZeros(fence)), 0)
	return err == nil, at, err
}

// writable reports whether each resource could be written to at some time until then.
func writable(folder string, patience time.Duration) bool {
	end := time.Now().Add(patience)
	files, _ := filepath.Glob(filepath.Join(folder, "resource-*")) // the pattern is a good one
	for _, name := range files {
		for !unlocked(name) {
			if time.Now().After(end) {
				return false
			}
			<-time.After(5 * time.Millisecond) // real time: others write meanwhile
		}
	}
	return true
}

func unlocked(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // which unlocks it
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func leadingZeros(n int64) string {
	s := strconv.FormatInt(n, 10)
	return strings.Repeat("0", 20-len(s)) + s
}
