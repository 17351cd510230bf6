package unmap

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestUnchangedPartsOfTheProgram(t *testing.T) {
	const program = "/opt/pilot house/pilot-discovery"
	one := func(header, anonymous string) string {
		return header + "\nSize:                 64 kB\nRss:                  64 kB\nAnonymous:   " + anonymous + " kB\nTHPeligible:           0\nVmFlags: rd ex mr mw me\n"
	}
	smaps := one("00400000-00410000 r-xp 00000000 fe:00 77    "+program, "0") +
		one("00410000-00420000 r--p 00010000 fe:00 77    "+program, "0") +
		one("00420000-00430000 r--p 00020000 fe:00 77    "+program, "4") + // relocated
		one("00430000-00440000 rw-p 00030000 fe:00 77    "+program, "0") +
		one("00440000-00450000 r--s 00040000 fe:00 77    "+program, "0") +
		one("00450000-00460000 r-xp 00040000 fe:00 78    /lib/x.so", "0") +
		one("00460000-00470000 r-xp 00040000 fe:00 78    /else"+program, "0") +
		one("c000000000-c000400000 rw-p 00000000 00:00 0", "8") +
		one("c000400000-c000500000 r--p 00000000 00:00 0", "0")
	if got, want := unchanged([]byte(smaps), program), []region{{0x400000, 0x410000}, {0x410000, 0x420000}}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	for _, broken := range []string{"", "Anonymous: 0 kB\n", "x-y r-xp 0 0 0 " + program + "\nAnonymous: 0 kB\n", "20-10 r-xp 0 0 0 " + program + "\nAnonymous: 0 kB\n", "10-20 r-xp 0 0 0 " + program + "\nAnonymous:\n"} {
		if got := unchanged([]byte(broken), program); len(got) > 0 {
			t.Errorf("%q: got %x, want none", broken, got)
		}
	}
}

func TestUnmappingTheProgramFreesMemory(t *testing.T) {
	before := residentFile(t)
	if err := Program(); err != nil {
		t.Fatal(err)
	}
	if after := residentFile(t); after >= before {
		t.Errorf("%d kB of the program are resident, %d kB before", after, before)
	}
}

// residentFile is how much of files the process has in its address space, in kB.
func residentFile(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssFile:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
