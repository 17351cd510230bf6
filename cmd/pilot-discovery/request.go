package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

func readRequest(v *settings.Values) (port int) { return v.Int("debug-port") }

func newRequest() *cobra.Command {
	c := &cobra.Command{
		Use: "request METHOD PATH [BODY]", Short: "Send a request to the debug port of the pilot-discovery on this host",
		Example: "  pilot-discovery request GET /debug/syncz",
		Args:    usage(cobra.RangeArgs(2, 3)),
		RunE: func(c *cobra.Command, args []string) error {
			body := ""
			if len(args) == 3 {
				body = args[2]
			}
			v := cli.Read(c.Flags(), nil, settings.DiscoveryRequest)
			port := readRequest(v)
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			url := fmt.Sprintf("http://localhost:%d/%s", port, strings.TrimPrefix(args[1], "/"))
			req, err := http.NewRequestWithContext(c.Context(), args[0], url, strings.NewReader(body))
			if err != nil {
				return misuse{err}
			}
			resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if _, err := io.Copy(c.OutOrStdout(), resp.Body); err != nil {
				return fmt.Errorf("read the response of %s: %w", url, err)
			}
			if resp.StatusCode > 399 {
				return fmt.Errorf("%s %s: status %s", args[0], url, resp.Status)
			}
			return nil
		},
	}
	cli.Add(c, settings.DiscoveryRequest)
	return c
}
