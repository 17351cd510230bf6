package main

import (
	"slices"
	"testing"
)

func TestNearNames(t *testing.T) {
	among := []string{"reviews-v1-1.bookshop", "reviews-v2-1.bookshop", "db-1.bookshop", "web-1.bookshop", "web-1.shop", "web-1.shop"}
	for name, want := range map[string][]string{
		"reviews":               {"reviews-v1-1.bookshop", "reviews-v2-1.bookshop"},
		"reviews.bookshop":      {"reviews-v1-1.bookshop", "reviews-v2-1.bookshop"},
		"web-1":                 {"web-1.bookshop", "web-1.shop"},
		"web-1.bookstore":       {"web-1.bookshop", "web-1.shop"},
		"reveiws-v1-1.bookshop": {"reviews-v1-1.bookshop"},
		"db-1.boookshop":        {"db-1.bookshop"},
		"payments.billing":      nil,
		"":                      nil,
	} {
		if got := near(name, among); !slices.Equal(got, want) {
			t.Errorf("%q is near %q, want %q", name, got, want)
		}
	}
}
