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
		at := fmt.Sprintf("file=%s,line=%d,", property.Replace(v.File), max(v.Line, 1))
		if v.File == stdinName { // which is no file of the repository
			at, text = "", fmt.Sprintf("%s:%d: %s", stdinName, max(v.Line, 1), text)
		}
		if _, err := fmt.Fprintf(w, "::%s %stitle=%s::%s\n", v.Severity, at, property.Replace(cmp.Or(v.Object, "pilotctl validate")), data.Replace(text)); err != nil {
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
		ID      string       `json:"id"`
		Short   sarifText    `json:"shortDescription"`
		Full    sarifText    `json:"fullDescription"`
		Help    sarifText    `json:"help"`
		Default sarifDefault `json:"defaultConfiguration"`
	}
	sarifDefault struct {
		Level string `json:"level"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations,omitempty"`
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
	driver := sarifDriver{Name: "pilotctl", Version: version}
	for _, r := range rules {
		driver.Rules = append(driver.Rules, sarifRule{r.id, sarifText{r.short}, sarifText{r.short + " " + r.help}, sarifText{r.help}, sarifDefault{r.level.String()}})
	}
	run := sarifRun{Tool: sarifTool{driver}, Results: []sarifResult{}}
	for _, v := range all {
		text := strings.Join(slices.DeleteFunc([]string{v.Object, v.Field, v.Text}, func(s string) bool { return s == "" }), ": ")
		result := sarifResult{
			RuleID: v.Rule, RuleIndex: slices.IndexFunc(rules, func(r rule) bool { return r.id == v.Rule }), Level: v.Severity, Message: sarifText{text},
			Locations: []sarifLocation{{sarifPhysical{sarifArtifact{artifactURI(folder, v.File)}, sarifRegion{max(v.Line, 1)}}}},
		}
		if v.File == stdinName { // which is no artifact
			result.Locations, result.Message.Text = nil, fmt.Sprintf("%s:%d: %s", stdinName, max(v.Line, 1), text)
		}
		run.Results = append(run.Results, result)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}})
}
