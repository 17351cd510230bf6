package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// printGitHub writes problems as workflow commands, which GitHub shows beside the lines of a change.
// https://docs.github.com/actions/reference/workflow-commands-for-github-actions
func printGitHub(w io.Writer, all []validated) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, v := range all {
		text := v.Text
		if v.Field != "" {
			text = v.Field + ": " + text
		}
		if _, err := fmt.Fprintf(w, "::%s file=%s,line=%d,title=%s::%s\n", v.Severity, property.Replace(v.File), max(v.Line, 1),
			property.Replace(cmp.Or(v.Object, "pilotctl validate")), data.Replace(text)); err != nil {
			return err
		}
	}
	return nil
}

// The parts of a SARIF log that are written.
// https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID    string    `json:"id"`
		Short sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
)

// artifactURI returns the URI of a file in a SARIF log: relative if the file is below the folder that the program runs
// in, which in a pipeline is that of the repository, since code hosts find files by the path in the repository.
func artifactURI(folder, file string) string {
	if !filepath.IsAbs(file) {
		return (&url.URL{Path: filepath.ToSlash(filepath.Clean(file))}).String()
	}
	if below, err := filepath.Rel(folder, file); folder != "" && err == nil && filepath.IsLocal(below) {
		return (&url.URL{Path: filepath.ToSlash(below)}).String()
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(file)}).String()
}

// printSARIF writes problems as a SARIF log, which code hosts show beside the lines of a change. The program runs in
// folder, which is empty if that is not known.
func printSARIF(w io.Writer, folder string, all []validated) error {
	run := sarifRun{Tool: sarifTool{sarifDriver{Name: "pilotctl", Version: version, Rules: []sarifRule{
		{"error", sarifText{"The object is rejected, or its policy is not enforced."}},
		{"warning", sarifText{"A part of the object has no effect, or not the expected one."}},
	}}}, Results: []sarifResult{}}
	for _, v := range all {
		text := strings.Join(slices.DeleteFunc([]string{v.Object, v.Field, v.Text}, func(s string) bool { return s == "" }), ": ")
		run.Results = append(run.Results, sarifResult{
			RuleID: v.Severity, Level: v.Severity, Message: sarifText{text},
			Locations: []sarifLocation{{sarifPhysical{sarifArtifact{artifactURI(folder, v.File)}, sarifRegion{max(v.Line, 1)}}}},
		})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}})
}
