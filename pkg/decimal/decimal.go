// Package decimal adds JSON numbers exactly: no float64 stands between a
// caller's 0.1, or an integer above 2^53, and what is stored.
package decimal

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// MaxDigits is the most digits a sum may have, written without an exponent.
const MaxDigits = 64

// maxInput bounds an operand's digits and exponent, so that a short text cannot
// ask for a number of a billion digits.
const maxInput = 400

// Add returns a+b, both JSON numbers, in plain notation: no exponent, no
// trailing zeros after the point, no negative zero. Its error says which operand
// is none or what is out of range.
func Add(a, b string) (string, error) {
	if x, err := strconv.ParseInt(a, 10, 64); err == nil && plain(a) {
		if y, err := strconv.ParseInt(b, 10, 64); err == nil && plain(b) {
			if s := x + y; (s > x) == (y > 0) {
				return strconv.FormatInt(s, 10), nil
			}
		}
	}
	x, err := parse(a)
	if err != nil {
		return "", err
	}
	y, err := parse(b)
	if err != nil {
		return "", err
	}
	if x.scale < y.scale {
		x, y = y, x
	}
	sum := new(big.Int).Mul(y.coeff, pow10(x.scale-y.scale))
	return number{sum.Add(sum, x.coeff), x.scale}.format()
}

// Normalize is the one plain spelling of a JSON number: 1.0, 1e0 and 1 are all
// 1.
func Normalize(s string) (string, error) { return Add(s, "0") }

// number is coeff / 10^scale, scale ≥ 0.
type number struct {
	coeff *big.Int
	scale int
}

// plain keeps to JSON's spelling of integers, which Go's is wider than.
func plain(s string) bool {
	t := strings.TrimPrefix(s, "-")
	return t != "" && t[0] != '+' && (t == "0" || t[0] != '0')
}

func parse(s string) (number, error) {
	bad := func() (number, error) { return number{}, fmt.Errorf("%q is not a JSON number", cut(s)) }
	rest, neg := strings.CutPrefix(s, "-")
	mantissa, exponent, hasExp := rest, "", false
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		mantissa, exponent, hasExp = rest[:i], rest[i+1:], true
	}
	whole, frac, hasFrac := strings.Cut(mantissa, ".")
	if !plain(whole) || !digits(whole) || hasFrac && !digits(frac) {
		return bad()
	}
	exp := 0
	if hasExp {
		unsigned := strings.TrimLeft(exponent, "+-")
		if !digits(unsigned) || len(exponent)-len(unsigned) > 1 {
			return bad()
		}
		var err error
		if exp, err = strconv.Atoi(exponent); err != nil || exp < -maxInput || exp > maxInput {
			return number{}, fmt.Errorf("%s is out of range", cut(s))
		}
	}
	if len(whole)+len(frac) > maxInput {
		return number{}, fmt.Errorf("%s is out of range", cut(s))
	}
	coeff, ok := new(big.Int).SetString(whole+frac, 10)
	if !ok {
		return bad()
	}
	if neg {
		coeff.Neg(coeff)
	}
	scale := len(frac) - exp
	if scale < 0 {
		coeff.Mul(coeff, pow10(-scale))
		scale = 0
	}
	return number{coeff, scale}, nil
}

func (n number) format() (string, error) {
	s := new(big.Int).Abs(n.coeff).String()
	if len(s) <= n.scale {
		s = strings.Repeat("0", n.scale-len(s)+1) + s
	}
	whole, frac := s[:len(s)-n.scale], strings.TrimRight(s[len(s)-n.scale:], "0")
	if len(whole)+len(frac) > MaxDigits {
		return "", fmt.Errorf("the number would have %d digits, at most %d are allowed", len(whole)+len(frac), MaxDigits)
	}
	out := whole
	if frac != "" {
		out += "." + frac
	}
	if n.coeff.Sign() < 0 {
		out = "-" + out
	}
	return out, nil
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

func cut(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
