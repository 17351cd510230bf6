package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

func newToken(env map[string]string) *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Make credentials for workloads outside Kubernetes",
		Example: `  pilotctl token create shop/reviews --stateDir /var/lib/pilothouse > istio-token
  pilotctl token join shop/legacy --stateDir /var/lib/pilothouse --address mesh.example.com:15012`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(inOneForm("a token", newTokenCreate()), inOneForm("a string for pilot-agent join", newJoinToken(env, "join", "token join")))
	return c
}

func newTokenCreate() *cobra.Command {
	c := &cobra.Command{
		Use:   "create NAMESPACE/ACCOUNT",
		Short: "Print a token that lets an agent act as a service account",
		Long: `Print a token that lets an agent act as a service account.

It is signed with the key in pilot-discovery's state folder, which pilot-discovery makes when it starts; --init
makes one before that. The agent reads it from ./var/run/secrets/tokens/istio-token. Keep it secret: with the
token, anyone can get certificates for that service account until it expires.

A machine that is to join with one string, which has the roots and the address of pilot-discovery, too, and
works once, takes that of pilotctl token join. -n and --serviceAccount may say who instead of NAMESPACE/ACCOUNT.`,
		Example: "  pilotctl token create bookshop/reviews --stateDir /var/lib/pilothouse > istio-token",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), nil, settings.PilotctlTokenCreate)
			o := readToken(v)
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			if err := o.who(args, cli.Given(c.Flags())); err != nil {
				return misuse{err}
			}
			token, err := o.issue()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), token)
			return err
		},
	}
	cli.Add(c, settings.PilotctlTokenCreate)
	return c
}

// tokenOptions are the options of a token.
type tokenOptions struct {
	stateDir, namespace, account, audience string
	ttl                                    time.Duration
	// init has a key be made if there is none.
	init bool
}

// readToken reads settings.PilotctlTokenCreate.
func readToken(v *settings.Values) tokenOptions {
	return tokenOptions{
		stateDir: v.Text("stateDir"), namespace: v.Text("namespace"), account: v.Text("serviceAccount"),
		audience: v.Text("audience"), ttl: v.Duration("ttl"), init: v.Bool("init"),
	}
}

// who sets the account from the argument, or else leaves those of the flags; given are the flags of the command line.
func (o *tokenOptions) who(args []string, given map[string]string) (err error) {
	if len(args) == 0 {
		if o.namespace == "" {
			return errors.New("whose token? want NAMESPACE/ACCOUNT, or -n NAMESPACE --serviceAccount ACCOUNT")
		}
		return nil
	}
	for _, flag := range []string{"namespace", "serviceAccount"} {
		if _, twice := given[flag]; twice {
			return fmt.Errorf("%s and --%s: want one of them", args[0], flag)
		}
	}
	o.namespace, o.account, err = parseAccount(args[0])
	return err
}

// parseAccount parses NAMESPACE/ACCOUNT, the way in which all commands of tokens say who gets one.
func parseAccount(text string) (namespace, account string, err error) {
	namespace, account, ok := strings.Cut(text, "/")
	if !ok {
		return "", "", fmt.Errorf("invalid account %q: want NAMESPACE/ACCOUNT", text)
	}
	return namespace, account, errors.Join(pki.CheckName("namespace", namespace), pki.CheckName("account", account))
}

func (o tokenOptions) issue() (string, error) {
	open := authn.FindIssuer
	if o.init {
		open = authn.OpenIssuer
	}
	issuer, err := open(o.stateDir)
	switch {
	case errors.Is(err, authn.ErrNoKey):
		return "", fmt.Errorf("%w: pilot-discovery makes one when it starts with this --stateDir; --init makes one now, which it will use", err)
	case err != nil:
		return "", err
	}
	return issuer.Issue(o.namespace, o.account, o.audience, o.ttl, time.Now())
}

// demoToken is what the demo's Pods get.
func demoToken(stateDir, namespace, account string) (string, error) {
	o := tokenOptions{stateDir: stateDir, namespace: namespace, account: account, audience: mesh.TokenAudience, ttl: authn.DefaultTokenTTL, init: true}
	return o.issue()
}
