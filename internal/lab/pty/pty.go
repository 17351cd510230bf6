// Package pty runs a program on a terminal that another program reads and types at.
//
// [Start] makes the terminal the controlling one of the program, as a shell does, so that it gets the terminal's signals: SIGINT
// for Ctrl-C, SIGWINCH after [Terminal.Resize]. See pty(7).
package pty

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Terminal is one end of a pseudo-terminal: what the program prints is read, what is written the program reads. Its methods
// may be called from several goroutines.
type Terminal struct {
	master *os.File
}

// Start starts cmd on a new terminal of a size. The caller reads until io.EOF, which is when the program and its children have
// closed the terminal, then calls cmd.Wait and Close.
func Start(cmd *exec.Cmd, columns, rows uint16) (_ *Terminal, err error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	t := &Terminal{master: master}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	number := 0
	err = t.control(func(fd int) (err error) {
		if number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN); err != nil {
			return err
		}
		return unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	if err := t.Resize(columns, rows); err != nil {
		return nil, err
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return t, errors.Join(cmd.Start(), slave.Close())
}

// control runs f with the descriptor of the terminal, which stays one that reads can be interrupted on.
func (t *Terminal) control(f func(fd int) error) error {
	raw, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}

// Resize changes the size, in characters.
func (t *Terminal) Resize(columns, rows uint16) error {
	err := t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	})
	if err != nil {
		return fmt.Errorf("resize a pseudo-terminal: %w", err)
	}
	return nil
}

// Read reads what the program prints.
func (t *Terminal) Read(p []byte) (int, error) {
	n, err := t.master.Read(p)
	if errors.Is(err, syscall.EIO) { // nobody has it open any more
		err = io.EOF
	}
	return n, err
}

// Write types.
func (t *Terminal) Write(p []byte) (int, error) { return t.master.Write(p) }

// Close hangs up.
func (t *Terminal) Close() error { return t.master.Close() }
