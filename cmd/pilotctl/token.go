package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

func newToken() *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Make credentials for workloads outside Kubernetes",
		Args:  usage(cobra.NoArgs),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newTokenCreate())
	return c
}

func newTokenCreate() *cobra.Command {
	var stateDir, namespace, account, audience string
	var ttl time.Duration
	c := &cobra.Command{
		Use:   "create",
		Short: "Print a token that lets an agent act as a service account",
		Long: `Print a token that lets an agent act as a service account.

It is signed with the key in pilot-discovery's state folder, which is made there if there
is none yet. Put it where the agent looks: ./var/run/secrets/tokens/istio-token.
Whoever has the token can get certificates for that service account until it ends.`,
		Example: "  pilotctl token create --stateDir /var/lib/pilothouse -n bookshop --serviceAccount reviews > istio-token",
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if ttl <= 0 {
				return misuse{fmt.Errorf("--ttl %v: want more than 0", ttl)}
			}
			token, err := issue(stateDir, namespace, account, audience, ttl)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), token)
			return err
		},
	}
	c.Flags().StringVar(&stateDir, "stateDir", "", "pilot-discovery's state `folder`")
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the service account")
	c.Flags().StringVar(&account, "serviceAccount", "default", "`name` of the service account")
	c.Flags().StringVar(&audience, "audience", mesh.TokenAudience, "whom the token is for")
	c.Flags().DurationVar(&ttl, "ttl", authn.DefaultTokenTTL, "how long the token is good")
	for _, name := range []string{"stateDir", "namespace"} {
		_ = c.MarkFlagRequired(name) // an error here means that there is no such flag
	}
	return c
}

func issue(stateDir, namespace, account, audience string, ttl time.Duration) (string, error) {
	issuer, err := authn.OpenIssuer(stateDir)
	if err != nil {
		return "", err
	}
	return issuer.Issue(namespace, account, audience, ttl, time.Now())
}

// demoToken is what the demo's Pods get.
func demoToken(stateDir, namespace, account string) (string, error) {
	return issue(stateDir, namespace, account, mesh.TokenAudience, authn.DefaultTokenTTL)
}
