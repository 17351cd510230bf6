package filewatch

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The script's commands, one a line, each preceded by the time in milliseconds:
//
//	look a1 bX   file a is there with signature 1, b is unknown
//	take a1      a was read
//	again a      a second look at a is wanted
//
// and after "look … =" stands what is due, after "next" when to look again.
func TestPace(t *testing.T) {
	for name, script := range map[string]string{
		"an old file is due at once": `
			0 look a1 = a`,
		"a new file settles first": `
			0 look a1 = a
			0 take a1
			10 look a1 b9 =
			39 look a1 b9 =
			40 look a1 b9 = b`,
		"a file that keeps changing is left alone": `
			0 look a1 = a
			0 take a1
			10 look a2 =
			30 look a3 =
			59 look a3 =
			60 look a3 = a
			60 take a3
			61 look a3 =`,
		"changes near each other are taken together": `
			0 look a1 b1 = a b
			0 take a1
			0 take b1
			10 look a2 b1 =
			30 look a2 b2 =
			40 look a2 b2 =
			60 look a2 b2 = a b`,
		"one restless file does not hold the others up": `
			0 look a1 b1 = a b
			0 take a1
			0 take b1
			10 look a2 b2 =
			30 look a2 b3 =
			50 look a2 b4 =
			70 look a2 b5 = a`,
		"a deleted file is due, and again": `
			0 look a1 = a
			0 take a1
			10 look =
			40 look = a
			40 take a0
			40 again a
			79 look =
			80 look = a
			80 take a0
			81 look =`,
		"a file back before the second look": `
			0 look a1 = a
			0 take a1
			10 look =
			40 look = a
			40 take a0
			40 again a
			50 look a2 =
			80 look a2 = a`,
		"unknown for a while": `
			0 look a1 = a
			0 take a1
			10 look aX =
			99 look aX =
			100 look a1 =
			130 look a1 = a`,
		"unknown, then gone": `
			0 look a1 = a
			0 take a1
			10 look aX =
			20 look =
			50 look = a`,
		"due until taken": `
			0 look a1 = a
			5 look a1 = a`,
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPace(30*time.Millisecond, 40*time.Millisecond)
			start := time.Unix(1_000_000, 0)
			sig := func(s string) Sig {
				switch s[1] {
				case '0':
					return Sig{}
				case 'X':
					return Unknown
				}
				m := start.Add(-time.Hour)
				if s[1] == '9' {
					m = start.Add(5 * time.Millisecond)
				}
				return Sig{ino: uint64(s[0]), size: int64(s[1]), mtime: m.UnixNano()}
			}
			for line := range strings.Lines(strings.TrimSpace(script)) {
				line = strings.TrimSpace(line)
				step, want, _ := strings.Cut(line, " =")
				f := strings.Fields(step)
				ms := 0
				fmt.Sscan(f[0], &ms)
				now := start.Add(time.Duration(ms) * time.Millisecond)
				switch f[1] {
				case "take":
					p.Taken(f[2][:1], sig(f[2]))
				case "again":
					p.Again(f[2], now)
				case "look":
					seen := map[string]Sig{}
					for _, s := range f[2:] {
						seen[s[:1]] = sig(s)
					}
					if got := strings.Join(p.Look(now, seen), " "); got != strings.TrimSpace(want) {
						t.Fatalf("%s: got %q", line, got)
					}
				}
			}
		})
	}
}

func TestPaceNext(t *testing.T) {
	p := NewPace(30*time.Millisecond, 40*time.Millisecond)
	start := time.Unix(1_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	if n := p.Next(start); !n.IsZero() {
		t.Errorf("nothing pending: next %v", n)
	}
	fresh := Sig{ino: 1, mtime: start.UnixNano()}
	p.Look(at(0), map[string]Sig{"a": fresh})
	if n := p.Next(at(0)); n != at(30) || p.Settled() {
		t.Errorf("settling: next %v, settled %v", n.Sub(start), p.Settled())
	}
	p.Taken("a", fresh)
	p.Again("a", at(30))
	if n := p.Next(at(30)); n != at(70) || !p.Settled() {
		t.Errorf("second look: next %v, settled %v", n.Sub(start), p.Settled())
	}
}
