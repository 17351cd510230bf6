package filewatch

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A line of a script is a time in milliseconds, what is used, what is there now ("a5":
// file a with five bytes, "A5": another file in its place), and how long to wait.
func TestShrunk(t *testing.T) {
	for name, script := range map[string]string{
		"nothing changed":      `0 a5 a5 0`,
		"grown":                `0 a5 a6 0`,
		"as large as before":   `0 a5 a5 0`,
		"replaced":             `0 a5 A2 0`,
		"gone":                 `0 a5 a0 0`,
		"new":                  `0 a0 a2 0`,
		"shrunk for good":      "0 a5 a2 1500\n1000 a5 a2 500\n1500 a5 a2 0",
		"shrinks again":        "0 a5 a2 1500\n1000 a5 a1 1500\n2499 a5 a1 1\n2500 a5 a1 0",
		"written line by line": "0 a5 a2 1500\n1000 a5 a4 1500\n2000 a5 a7 1500\n3500 a5 a7 0\n3600 a7 a8 0",
		"replaced meanwhile":   "0 a5 a2 1500\n1000 a5 A2 0",
		"two files":            "0 a5b5 a2b5 1500\n500 a5b5 a2b3 1500\n1500 a5b5 a2b3 500\n2000 a5b5 a2b3 0",
	} {
		t.Run(name, func(t *testing.T) {
			var s Shrunk
			start := time.Unix(1_000_000, 0)
			parse := func(text string) map[string]Sig {
				out := map[string]Sig{}
				for ; text != ""; text = text[2:] {
					sig := Sig{ino: uint64(text[0]), size: int64(text[1] - '0')}
					if sig.size == 0 {
						sig = Sig{}
					}
					out[strings.ToLower(text[:1])] = sig
				}
				return out
			}
			for line := range strings.Lines(script) {
				var ms, want int
				var used, now string
				if _, err := fmt.Sscan(line, &ms, &used, &now, &want); err != nil {
					t.Fatal(err)
				}
				got := s.Wait(start.Add(time.Duration(ms)*time.Millisecond), parse(used), parse(now))
				if got != time.Duration(want)*time.Millisecond {
					t.Fatalf("%s: wait %v", strings.TrimSpace(line), got)
				}
			}
		})
	}
}
