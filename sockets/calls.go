//go:build !linux || race

// The race detector has to see reads and writes; other systems than Linux have no stable numbers of system calls.

package sockets

import "syscall"

func read(fd int, p []byte) (int, error) { return atLeast0(syscall.Read(fd, p)) }

func write(fd int, p []byte) (int, error) { return atLeast0(syscall.Write(fd, p)) }

func atLeast0(n int, err error) (int, error) { return max(n, 0), err }
