package logging

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/logline"
)

// Loggers that exist already follow a change; a change that is wrong changes nothing.
func TestLevelsAreChangedAtRunTime(t *testing.T) {
	levels, err := ParseLevels("warn,xds:info")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := slog.New(levels.Handler(logline.Text(&out, logline.Options{})))
	xds, sds := log.With("scope", "xds"), log.With("scope", "sds").WithGroup("g")
	say := func() string {
		out.Reset()
		for _, l := range []*slog.Logger{log, xds, sds} {
			l.Debug("d")
			l.Info("i")
			l.Warn("w")
		}
		var said []string
		for line := range strings.Lines(out.String()) {
			fields := strings.Split(strings.TrimSpace(line), "\t")
			said = append(said, strings.Join(fields[2:], "."))
		}
		return strings.Join(said, " ")
	}
	for _, tt := range []struct{ set, fails, said, levels string }{
		{"", "log level: want SCOPE:LEVEL, such as xdsproxy:debug", "w xds.i xds.w sds.w", "default:warn\nsds:warn\nxds:info\n"},
		{"xds:debug", "", "w xds.d xds.i xds.w sds.w", "default:warn\nsds:warn\nxds:debug\n"},
		{"sds:none,xds:loud", `log level "xds:loud": want debug, info, warn, error, fatal or none`, "w xds.d xds.i xds.w sds.w", ""},
		{"lds:debug", `log level of "lds": want one of the scopes default, sds, xds`, "w xds.d xds.i xds.w sds.w", ""},
		{"sds:none", "", "w xds.d xds.i xds.w", "default:warn\nsds:none\nxds:debug\n"},
		{"info", "", "i w xds.d xds.i xds.w", ""},
		{"all:warn", "", "w xds.w sds.w", "default:warn\nsds:warn\nxds:warn\n"},
		{strings.Repeat("x", maxText+1), "log levels: 4097 bytes: want at most 4096", "w xds.w sds.w", ""},
	} {
		text := ""
		if err := levels.Set(tt.set); err != nil {
			text = err.Error()
		}
		if said := say(); text != tt.fails || said != tt.said || tt.levels != "" && levels.String() != tt.levels {
			t.Errorf("%.40q: error %q, said %q, want %q\n%s", tt.set, text, said, tt.said, levels)
		}
	}
}
