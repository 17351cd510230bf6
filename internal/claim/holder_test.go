package claim

import "testing"

func TestLockedBy(t *testing.T) {
	const list = `1: POSIX  ADVISORY  WRITE 11 fd:01:5 0 EOF
2: FLOCK  ADVISORY  WRITE 22 fd:01:55 0 EOF
2: -> FLOCK  ADVISORY  WRITE 33 fd:01:5 0 EOF
3: FLOCK  ADVISORY  WRITE 44 fd:01:5 0 EOF
4: FLOCK  ADVISORY  WRITE 0 fd:01:6 0 EOF
short
`
	for file, want := range map[string]int{"fd:01:5": 44, "fd:01:55": 22, "fd:01:6": 0, "fd:02:5": 0} {
		if got := lockedBy(list, file); got != want {
			t.Errorf("%s: process %d, want %d", file, got, want)
		}
	}
}
