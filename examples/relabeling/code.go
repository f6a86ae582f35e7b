package relabeling

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// maxCode is longer than any GS1 element string, in bytes.
const maxCode = 128

// clean takes off a scanned code what the scanner put there and what got in on
// the way: white space, control characters (a GS1 code's fields end in 0x1D)
// and invisible ones anywhere, and symbology identifiers such as "]C1" in
// front. Cleaning twice changes nothing more.
func clean(scanned string) string {
	code := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Z) {
			return -1
		}
		return r
	}, scanned)
	for hasIdentifier(code) {
		code = code[3:]
	}
	return code
}

// hasIdentifier reports a symbology identifier (ISO/IEC 15424) in front: "]",
// a letter for the kind of code, a digit for its options.
func hasIdentifier(code string) bool {
	return len(code) >= 3 && code[0] == ']' && isLetter(code[1]) && isDigit(code[2])
}

// check reports why a cleaned code cannot be one. The text is for the model.
func check(code string) error {
	if code == "" {
		return errors.New("nothing is left of the code without white space and symbology prefix; pass the code as it was scanned")
	}
	if len(code) > maxCode {
		return fmt.Errorf("the code has %d characters, more than any tracking code (%d); pass one code per call", len(code), maxCode)
	}
	if i := strings.IndexFunc(code, func(r rune) bool { return r <= ' ' || r > '~' }); i >= 0 {
		return fmt.Errorf("%q is not a tracking code: it has characters that no code has", code)
	}
	// A code that starts with one of =+-@ would be a formula where the CSV file
	// is opened in a spreadsheet.
	if !strings.ContainsFunc(code, isAlnum) || strings.ContainsRune("=+-@", rune(code[0])) {
		return fmt.Errorf("%q is not a tracking code", code)
	}
	return nil
}

func isLetter(c byte) bool { return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
func isAlnum(r rune) bool  { return r < 0x80 && (isLetter(byte(r)) || isDigit(byte(r))) }
