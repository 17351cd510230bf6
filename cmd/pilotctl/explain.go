package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/discovery/explain"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

const explainPage = "debug/explain"

// Exit codes of "pilotctl explain" besides 0, for what is allowed, and 2.
const (
	exitDenied  = 1
	exitDepends = 3
	exitUnknown = 4
)

func newExplain(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "explain FROM TO",
		Short: "Say where a request goes, whether it is allowed, and which rule of which object says so",
		Long: `Say where a request goes, whether it is allowed, and which rule of which object says so.

FROM is a Pod, POD.NAMESPACE or NAMESPACE/POD, an identity, NAMESPACE/ACCOUNT (where there is no such Pod)
or spiffe://..., or "none" for a client without a proxy, which connects in plaintext. TO is a URL,
http://HOST:PORT/PATH, whose host may be short for the client's namespace, a service, by its host or as
NAME.NAMESPACE, or a Pod. A Pod without its namespace is in that of --namespace. The request is GET / at
the service's host, unless the URL or flags say otherwise.

The answer is evaluated from the configuration that the proxies of both sides are sent, not from the
objects, so that it also shows what they were compiled to: the route that the client's proxy takes, with
the clusters by weight and what it rewrites, the endpoints, whether the client connects by mutual TLS, what
the port accepts, tokens, and the rules of AuthorizationPolicies in the order in which they are evaluated,
CUSTOM, AUDIT, DENY and ALLOW, each with the file and line of its object. Certificates are taken for valid.
What an external authorizer answers is not known. Nothing is sent to the workload, and timeouts, retries
and the choice of one endpoint are not considered: all workloads behind a cluster are listed, and where they
differ, each. Of a client that is no connected proxy, and of TO a Pod, no route is evaluated.

The exit code is 0 if the request is allowed, 1 if it is denied, or if the client's proxy answers it with
400 or more, 2 if the command line is invalid, 3 if that depends, on an external authorizer or on the
workload that gets the request, and 4 if it is not known: a rule is about something that was not given, a
proxy is not connected, or pilot-discovery does not answer.`,
		Example: `  pilotctl explain bookshop/productpage-v1-1 http://reviews:9080/reviews/7
  pilotctl explain productpage-v1-1.bookshop reviews.bookshop --port 9080 --path /reviews/7 -H 'end-user: ann'
  pilotctl explain bookshop/productpage reviews-v1-1.bookshop -X DELETE
  pilotctl explain none reviews.bookshop
  pilotctl explain bookshop/reader reviews.bookshop --jwt-claims '{"iss": "https://login.example", "sub": "ann"}'`,
		Args: usage(cobra.ExactArgs(2)),
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			if len(args) == 1 {
				return completeServices(c, f, prefix)
			}
			names, d := completeProxies(c, f, prefix)
			if len(args) == 0 && strings.HasPrefix(explain.None, prefix) {
				names = append(names, explain.None)
			}
			return names, d
		},
		RunE: func(c *cobra.Command, args []string) error {
			q, err := readExplain(cli.Read(c.Flags(), nil, settings.PilotctlExplain))
			if err != nil {
				return misuse{err}
			}
			code, err := f.explain(c, q, args)
			switch {
			case errors.As(err, new(misuse)):
				return err
			case err != nil:
				fmt.Fprintln(c.ErrOrStderr(), "pilotctl:", err)
				return exitCode{exitUnknown}
			case code != 0:
				return exitCode{code}
			}
			return nil
		},
	}
	asking(c, settings.PilotctlExplain, settings.PilotctlNamespace)
	return c
}

// readExplain reads settings.PilotctlExplain.
func readExplain(v *settings.Values) (explain.Query, error) {
	q := explain.Query{
		Method: v.TextOr("method", ""), Path: v.TextOr("path", ""), Host: v.TextOr("host", ""), TCP: v.Bool("tcp"), Address: v.TextOr("address", ""),
	}
	if _, given := v.Given("port"); given {
		q.Port = uint32(v.Int("port")) // #nosec G115 -- it is a port
	}
	headers, claims := v.Lines("header"), v.Text("jwt-claims")
	if err := v.Err(); err != nil {
		return q, err
	}
	for _, h := range headers {
		i := strings.IndexAny(h, "=:")
		if i < 0 {
			return q, fmt.Errorf("flag --header: invalid header %q: want NAME=VALUE", h)
		}
		if q.Headers == nil {
			q.Headers = map[string][]string{}
		}
		q.Headers[h[:i]] = append(q.Headers[h[:i]], strings.TrimSpace(h[i+1:]))
	}
	if claims != "" {
		if err := json.Unmarshal([]byte(claims), &q.Claims); err != nil || q.Claims == nil {
			return q, fmt.Errorf("flag --jwt-claims: invalid claims %q: want a JSON object", claims)
		}
	}
	return q, nil
}

// explain asks a question and prints the answer. It returns the exit code that the decision has.
func (f *flags) explain(c *cobra.Command, q explain.Query, args []string) (int, error) {
	var err error
	if q.From = args[0]; q.From != explain.None && !strings.Contains(q.From, "/") {
		if q.From, err = f.fullName(c, q.From); err != nil {
			return 0, err
		}
	}
	if q.To = args[1]; !strings.Contains(q.To, "/") {
		if q.To, err = f.fullName(c, q.To); err != nil {
			return 0, err
		}
	}
	if q, err = q.Complete(); err != nil {
		return 0, misuse{err}
	}
	a, err := f.answer(c, q)
	if err != nil {
		return 0, err
	}
	if f.output == "table" {
		err = printExplained(c.OutOrStdout(), f.columns(c), a)
	} else {
		err = printValue(c.OutOrStdout(), f.output, a)
	}
	switch a.Decision {
	case explain.Allowed:
		return 0, err
	case explain.Denied:
		return exitDenied, err
	case explain.Asks, explain.Depends:
		return exitDepends, err
	case explain.Answered:
		for _, w := range a.Workloads {
			if w.Status == 0 || w.Status >= http.StatusBadRequest {
				return exitDenied, err
			}
		}
		return 0, err
	case explain.Unknown:
	}
	return exitUnknown, err
}

// answer asks all replicas: each knows what the proxies that are connected to it decide.
func (f *flags) answer(c *cobra.Command, q explain.Query) (explain.Answer, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return explain.Answer{}, fmt.Errorf("encode the question: %w", err)
	}
	r, err := f.connect(c)
	if err != nil {
		return explain.Answer{}, err
	}
	defer r.Close()
	got, lost, err := answered(r.ask(c.Context(), explainPage, nil, text))
	if err != nil {
		if said := (*statusError)(nil); errors.As(err, &said) && (said.code == http.StatusNotFound || said.code == http.StatusBadRequest) {
			return explain.Answer{}, f.near(c, r, q, err)
		}
		return explain.Answer{}, err
	}
	pages, err := decoded[explain.Answer](got, explainPage)
	if err != nil {
		return explain.Answer{}, err
	}
	all := make([]explain.Answer, len(pages))
	for i, p := range pages {
		all[i] = p.value
	}
	_ = lost.report(c.ErrOrStderr()) // what it would have decided is unknown, and said to be
	return explain.Join(all), nil
}

// near adds to an error the connected proxies, and where one may be meant the services, whose names are near those of the question.
func (f *flags) near(c *cobra.Command, r *replicas, q explain.Query, err error) error {
	texts, _, listed := connected(c.Context(), r)
	if listed != nil {
		return err
	}
	list, listed := decodeProxies(texts)
	if listed != nil {
		return err
	}
	var names []string
	for _, p := range list {
		names = append(names, p.Proxy)
	}
	services, _ := objectsInForce(c.Context(), r) // without them there is less of a hint
	for _, o := range services {
		if o.Kind == string(object.Service) && strings.Contains(err.Error(), "no service") {
			names = append(names, o.Name+"."+o.Namespace)
		}
	}
	for _, name := range []string{q.From, q.To} {
		if !slices.Contains(names, name) && strings.Contains(err.Error(), printable.Quote(name, 300)) {
			return fmt.Errorf("%w%s", err, didYouMean(near(name, names)))
		}
	}
	return err
}

// printExplained prints an answer: what is decided, and then why, once for the workloads that are the same. Lines that have
// more than columns are wrapped, unless that is 0.
func printExplained(w io.Writer, columns int, a explain.Answer) error {
	var b bytes.Buffer
	groups, sizes := [][]explain.Workload{}, []string{}
	for _, one := range a.Workloads {
		same := one
		same.Name = ""
		key, err := json.Marshal(same)
		if err != nil {
			return fmt.Errorf("compare the workloads: %w", err)
		}
		i := slices.Index(sizes, string(key))
		if i < 0 {
			groups, sizes = append(groups, nil), append(sizes, string(key))
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], one)
	}
	if len(groups) == 1 {
		fmt.Fprintln(&b, decided(groups[0][0].Verdict))
	} else {
		fmt.Fprintf(&b, "%s: it is not the same for all %d of its workloads and ways to them\n", strings.ToUpper(string(a.Decision)), len(a.Workloads))
		if a.Decision != explain.Depends {
			b.Reset()
			fmt.Fprintf(&b, "%s, for different reasons\n", strings.ToUpper(string(a.Decision)))
		}
	}
	fmt.Fprintln(&b)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(name string, parts ...string) {
		parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
		fmt.Fprintf(table, "%s\t%s\n", name, printable.Escape(strings.Join(parts, ", ")))
	}
	line("from", a.From.Name, a.From.Identity, a.From.Address)
	to := a.To
	if a.Port != 0 {
		to = fmt.Sprintf("%s:%d", a.To, a.Port)
	}
	line("to", to)
	if a.Request != nil {
		line("request", a.Request.Method+" "+a.Request.Path, "host "+a.Request.Host)
	} else {
		line("request", "none: a connection that is not HTTP")
	}
	if a.Route != nil {
		printRoute(line, a.Route)
	}
	_ = table.Flush() // to a buffer
	for _, g := range groups {
		printWorkloads(&b, g, len(groups) > 1)
	}
	text := b.String()
	if columns > 0 {
		text = hang(text, columns)
	}
	_, err := io.WriteString(w, text)
	return err
}

// printRoute prints where the client's proxy sends the request.
func printRoute(line func(name string, parts ...string), r *explain.Route) {
	name := r.Name
	if name != "" {
		name = "route " + name
	}
	host := r.VirtualHost
	if host != "" {
		host = "virtual host " + host
	}
	object := ""
	if r.Object != "" {
		object = placed(r.Object, r.Origin)
	}
	line("route", object, name, host, "listener "+r.Listener)
	for _, c := range r.Clusters {
		parts := []string{c.Name}
		if c.Weight != 0 {
			parts[0] += fmt.Sprintf(" by weight %d", c.Weight)
		}
		switch {
		case c.Endpoints == nil:
		case *c.Endpoints == 1:
			parts = append(parts, "1 endpoint")
		default:
			parts = append(parts, fmt.Sprintf("%d endpoints", *c.Endpoints))
		}
		if c.Request != nil {
			parts = append(parts, fmt.Sprintf("gets %s %s for host %s", c.Request.Method, c.Request.Path, c.Request.Host))
		}
		line("cluster", parts...)
	}
	for _, n := range r.Notes {
		line("note", n)
	}
}

// decided is a verdict in one line.
func decided(v explain.Verdict) string {
	status := ""
	if v.Status != 0 {
		status = fmt.Sprintf(" (%d)", v.Status)
	}
	return printable.Escape(fmt.Sprintf("%s%s: %s", strings.ToUpper(string(v.Decision)), status, v.Reason))
}

// printWorkloads prints the verdict of workloads that have the same one.
func printWorkloads(b io.Writer, g []explain.Workload, several bool) {
	v := g[0]
	names := make([]string, len(g))
	for i, w := range g {
		names[i] = printable.Escape(w.Name)
	}
	where := strings.Join(names, ", ")
	if v.Port != 0 {
		where += fmt.Sprintf(", port %d", v.Port)
	}
	fmt.Fprintf(b, "\n%s\n", where)
	if several {
		fmt.Fprintln(b, "  "+decided(v.Verdict))
	}
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(table, "  %s\t%s\n", name, printable.Escape(text))
		}
	}
	connects := v.Connects
	if len(v.By) > 0 {
		connects += ", by cluster " + strings.Join(v.By, " and ")
	}
	line("connects", connects)
	mode := v.Mode
	if v.ModeFrom != nil {
		mode += ": " + placed(v.ModeFrom.Object, v.ModeFrom.Origin)
	}
	line("accepts", mode)
	line("path", v.Path)
	for _, t := range v.Tokens {
		text := "of " + t.Issuer
		if len(t.Audiences) > 0 {
			text += " for " + strings.Join(t.Audiences, " or ")
		}
		line("token", text+" in "+strings.Join(t.From, " or ")+": "+placed(t.Object, t.Origin))
	}
	for _, r := range v.Rules {
		state := r.State
		if r.DryRun {
			state += ", dry run"
		}
		line(r.Action, state+": "+r.String())
	}
	for _, n := range v.Notes {
		line("note", n)
	}
	_ = table.Flush() // to a buffer
}

// placed is an object, and where it is.
func placed(object, origin string) string {
	if origin == "" {
		return object
	}
	return object + " (" + origin + ")"
}
