package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The types below are the part of CycloneDX 1.6 (JSON) that an SBOM of Go programs needs.
// https://cyclonedx.org/docs/1.6/json/

type bom struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp  string     `json:"timestamp"`
	Component  component  `json:"component"`
	Properties []property `json:"properties"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// binary is a program that was built: what it says about itself, and its SHA-256.
type binary struct {
	name, sum string
	info      *buildinfo.BuildInfo
}

// readBinary reads the build information of a program.
func readBinary(name, file string) (binary, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return binary{}, fmt.Errorf("read the build information of %s: %w", file, err)
	}
	sum, err := sumOf(file)
	return binary{name, sum, info}, err
}

// sbom writes the bill of materials of the programs of one platform: each program, and each module and
// the standard library that it was built from. It is the same for the same programs. The checksum of a
// module is the one that go.sum has for it.
func sbom(version string, when time.Time, platform string, binaries []binary) ([]byte, error) {
	const root = "pilothouse"
	out := bom{Format: "CycloneDX", SpecVersion: "1.6", Version: 1}
	out.Metadata = metadata{
		Timestamp:  when.Format(time.RFC3339),
		Component:  component{Type: "application", Ref: root, Name: root, Version: version},
		Properties: []property{{"pilothouse:platform", platform}},
	}
	modules := map[string]component{}
	tree := dependency{Ref: root}
	for _, b := range binaries {
		program := component{Type: "application", Ref: b.name, Name: b.name, Version: version, Hashes: []hash{{"SHA-256", b.sum}}}
		for _, s := range b.info.Settings {
			program.Properties = append(program.Properties, property{"go:build:" + s.Key, s.Value})
		}
		out.Components = append(out.Components, program)
		tree.DependsOn = append(tree.DependsOn, b.name)
		uses := dependency{Ref: b.name}
		for _, m := range modulesOf(b.info) {
			modules[m.Ref] = m
			uses.DependsOn = append(uses.DependsOn, m.Ref)
		}
		out.Dependencies = append(out.Dependencies, uses)
	}
	out.Dependencies = append([]dependency{tree}, out.Dependencies...)
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		out.Components = append(out.Components, modules[ref])
	}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

// modulesOf lists the modules that a program was built from, and the standard library. A module that
// go.mod replaces is listed as what it was replaced by, since that is what was compiled.
func modulesOf(info *buildinfo.BuildInfo) []component {
	out := []component{module("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		out = append(out, module(m.Path, m.Version, m.Sum))
	}
	return out
}

func module(path, version, sum string) component {
	c := component{Type: "library", Name: path, Version: version, PURL: "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")}
	c.Ref = c.PURL
	if sum != "" {
		c.Properties = []property{{"go:sum", sum}}
	}
	return c
}
