package toolstate

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/toolbus/toolbus/contracts/errcode"
)

var units = map[string]time.Duration{
	"second": time.Second, "sec": time.Second,
	"minute": time.Minute, "min": time.Minute,
	"hour": time.Hour,
	"day":  24 * time.Hour,
	"week": 7 * 24 * time.Hour,
}

// ParseTTL reads a document's life: a Go duration ("24h", "1h30m") or a sum of
// counted units ("+24 hours", "1 day 2 hours"; seconds, minutes, hours, days of
// 24 hours, weeks; one or many). It must be positive. Anything else is
// invalid_request for the field ttl.
func ParseTTL(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		var ok bool
		if d, ok = parseUnits(s); !ok {
			return 0, errcode.Field("ttl", "%.40q is not a duration such as \"24h\" or \"+24 hours\"", s)
		}
	}
	if d <= 0 {
		return 0, errcode.Field("ttl", "%.40q is not positive", s)
	}
	return d, nil
}

func parseUnits(s string) (time.Duration, bool) {
	words := strings.Fields(s)
	if len(words) == 0 || len(words)%2 != 0 {
		return 0, false
	}
	var sum time.Duration
	for i := 0; i < len(words); i += 2 {
		count := strings.TrimPrefix(words[i], "+")
		n, err := strconv.ParseUint(count, 10, 32)
		name := strings.ToLower(words[i+1])
		unit, ok := units[name]
		if !ok {
			unit, ok = units[strings.TrimSuffix(name, "s")]
		}
		if err != nil || !ok || time.Duration(n) > (math.MaxInt64-sum)/unit {
			return 0, false
		}
		sum += time.Duration(n) * unit
	}
	return sum, true
}
