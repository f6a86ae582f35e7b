// Package jsontext reads and writes the plain kind of JSON text without
// reflection and in one pass, for messages that are on the path of every call.
// It never guesses: what is not plain, or not valid, it reports as not ok, and
// its users leave that to encoding/json, whose verdict and error then count.
//
// Plain are objects and arrays nested at most MaxDepth deep, numbers as RFC 8259
// has them, and strings that are UTF-8 and whose \u escapes, if any, are no
// surrogates. It imports the standard library only.
package jsontext
