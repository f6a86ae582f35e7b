package arguments

import "strings"

// nearest is the known name that a typing mistake most likely meant, or "".
func nearest(name string, known []string) string {
	best, bestDist := "", 3 // at most two edits away
	if len(name) > 64 {
		return ""
	}
	for _, k := range known {
		if strings.EqualFold(strip(name), strip(k)) {
			return k
		}
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < bestDist && d < len(k) {
			best, bestDist = k, d
		}
	}
	return best
}

func strip(s string) string { return strings.NewReplacer("_", "", "-", "").Replace(s) }

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diag, row[j] = row[j], min(row[j]+1, row[j-1]+1, diag+cost)
		}
	}
	return row[len(b)]
}
