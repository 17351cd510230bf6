// Package spelling compares words, for suggestions of what may have been meant.
package spelling

// Distance returns the Levenshtein distance of a and b in bytes, or 99 if their lengths differ by
// more than three.
func Distance(a, b string) int {
	if len(a) > len(b)+3 || len(b) > len(a)+3 {
		return 99
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
