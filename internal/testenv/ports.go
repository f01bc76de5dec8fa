//go:build linux

package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// The ports lie below those that the kernel hands out by itself, so that no
// connection of somebody's takes the port of a server that is down for a while.
const (
	firstPort = 15000
	lastPort  = 32000
)

// lockFile opens the file and locks it against other processes and other calls of
// this one, until it is closed or the process ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// reservePort returns a port of 127.0.0.1 that nobody listens on and that no other
// test process gets until the reservation is closed.
func reservePort() (port int, reservation *os.File, err error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("solotick-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, err
	}
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		reservation, err = lockFile(filepath.Join(dir, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		l, taken := net.Listen("tcp4", address(port))
		if taken == nil {
			return port, reservation, l.Close()
		}
		err = errors.Join(taken, reservation.Close())
	}
	return 0, nil, fmt.Errorf("no free port after 100 tries: %w", err)
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
