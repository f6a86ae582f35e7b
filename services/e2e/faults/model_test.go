package faults

import (
	"math"
	"testing"

	"github.com/anishathalye/porcupine"
)

// op is an operation of a made-up history; at is when it was called and
// answered.
func op(call, end int64, in Ask, out any) porcupine.Operation {
	if out == (Unknown{}) {
		end = math.MaxInt64
	}
	return porcupine.Operation{Call: call, Return: end, Input: in, Output: out}
}

func TestDocumentModel(t *testing.T) {
	set := func(v string) Ask { return Ask{Op: "set", Key: KeyA, Value: v} }
	add := func(v string) Ask { return Ask{Op: "append", Key: KeyList, Value: v} }
	setIf := func(v string, rev uint64) Ask {
		return Ask{Op: "set", Key: KeyA, Value: v, If: Condition{true, rev}}
	}
	get := Ask{Op: "get", Key: KeyA}
	list := Ask{Op: "get", Key: KeyList}
	got := func(v string, rev uint64) Answer { return Answer{Found: v != "", Value: v, Revision: rev} }
	at := func(rev uint64) Answer { return Answer{Revision: rev} }
	length := func(n int64, rev uint64) Answer { return Answer{Number: n, Revision: rev} }
	clear := Ask{Op: "clear"}

	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"one after the other":          {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, set("2"), at(8)), op(4, 5, get, got("2", 8))}, true},
		"a read beside a write":        {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 9, set("2"), at(8)), op(3, 4, get, got("1", 5)), op(5, 6, get, got("2", 8))}, true},
		"a stale read":                 {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, set("2"), at(8)), op(4, 5, get, got("1", 5))}, false},
		"a read that goes back":        {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 9, set("2"), at(8)), op(3, 4, get, got("2", 8)), op(5, 6, get, got("1", 5))}, false},
		"the wrong revision":           {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, get, got("1", 4))}, false},
		"a revision twice":             {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, get, got("1", 5)), op(4, 5, set("1"), at(6)), op(6, 7, get, got("1", 5))}, false},
		"two in one message":           {[]porcupine.Operation{op(0, 5, add("1"), length(1, 7)), op(0, 5, add("2"), length(2, 8)), op(6, 7, list, got("[1,2]", 8))}, true},
		"three in one message":         {[]porcupine.Operation{op(0, 1, set("1"), at(6)), op(1, 2, get, got("1", 6)), op(3, 5, add("1"), length(1, 6)), op(3, 5, add("2"), length(2, 6)), op(3, 5, add("3"), length(3, 7)), op(6, 7, list, got("[1,2,3]", 7))}, true},
		"a lost update":                {[]porcupine.Operation{op(0, 5, add("1"), length(1, 7)), op(0, 5, add("2"), length(1, 8)), op(6, 7, list, got("[2]", 8))}, false},
		"a doubled append":             {[]porcupine.Operation{op(0, 1, add("1"), length(1, 7)), op(2, 3, list, got("[1,1]", 8))}, false},
		"appended, never answered":     {[]porcupine.Operation{op(0, 0, add("1"), Unknown{}), op(2, 3, list, got("", 0)), op(8, 9, list, got("[1]", 8))}, true},
		"never answered, never done":   {[]porcupine.Operation{op(0, 0, add("1"), Unknown{}), op(2, 3, list, got("", 0)), op(8, 9, add("2"), length(1, 8))}, true},
		"seen before it was asked":     {[]porcupine.Operation{op(0, 1, list, got("[1]", 8)), op(2, 0, add("1"), Unknown{})}, false},
		"an unanswered one twice":      {[]porcupine.Operation{op(0, 0, add("1"), Unknown{}), op(2, 3, list, got("[1,1]", 8))}, false},
		"a condition that is met":      {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, setIf("2", 5), at(6)), op(4, 5, get, got("2", 6))}, true},
		"both met the same condition":  {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 9, setIf("2", 5), at(6)), op(2, 9, setIf("3", 5), at(7))}, false},
		"a condition missed":           {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, setIf("2", 4), Answer{Missed: true, Revision: 5}), op(4, 5, get, got("1", 5))}, true},
		"missed though it was met":     {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, setIf("2", 5), Answer{Missed: true, Revision: 5})}, false},
		"a condition never answered":   {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 0, setIf("2", 5), Unknown{}), op(4, 5, get, got("2", 6))}, true},
		"made twice from nothing":      {[]porcupine.Operation{op(0, 1, setIf("1", 0), at(5)), op(2, 3, setIf("2", 0), at(6))}, false},
		"cleared stays cleared":        {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, clear, Answer{Found: true}), op(4, 5, get, got("1", 5))}, false},
		"cleared":                      {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, clear, Answer{Found: true}), op(4, 5, get, got("", 0)), op(6, 7, clear, Answer{})}, true},
		"cleared twice":                {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, clear, Answer{Found: true}), op(4, 5, clear, Answer{Found: true})}, false},
		"a revision before the clear":  {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, clear, Answer{Found: true}), op(4, 5, set("2"), at(3))}, false},
		"deleted the last key":         {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, Ask{Op: "delete", Key: KeyA}, Answer{Found: true}), op(4, 5, Ask{Op: "all"}, Answer{})}, true},
		"deleted one of two":           {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, add("7"), length(1, 6)), op(4, 5, Ask{Op: "delete", Key: KeyA}, Answer{Found: true, Revision: 7}), op(6, 7, Ask{Op: "all"}, Answer{Found: true, Revision: 7, All: Data{List: ",7", Length: 1}})}, true},
		"increments":                   {[]porcupine.Operation{op(0, 1, Ask{Op: "increment", Key: KeyN, By: 2}, Answer{Number: 2, Revision: 1}), op(2, 3, Ask{Op: "increment", Key: KeyN, By: 3}, Answer{Number: 5, Revision: 2})}, true},
		"an increment lost":            {[]porcupine.Operation{op(0, 1, Ask{Op: "increment", Key: KeyN, By: 2}, Answer{Number: 2, Revision: 1}), op(2, 3, Ask{Op: "increment", Key: KeyN, By: 3}, Answer{Number: 3, Revision: 2})}, false},
		"an update sets and deletes":   {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, Ask{Op: "update", Key: KeyB, Value: "2", Delete: KeyA}, at(6)), op(4, 5, Ask{Op: "all"}, Answer{Found: true, Revision: 6, All: Data{B: "2"}})}, true},
		"half of an update":            {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, Ask{Op: "update", Key: KeyB, Value: "2", Delete: KeyA}, at(6)), op(4, 5, Ask{Op: "all"}, Answer{Found: true, Revision: 6, All: Data{A: "1", B: "2"}})}, false},
		"a late effect over a clear":   {[]porcupine.Operation{op(0, 0, set("1"), Unknown{}), op(2, 3, clear, Answer{}), op(4, 5, get, got("1", 9))}, true},
		"gone, back without a writer":  {[]porcupine.Operation{op(0, 0, set("1"), Unknown{}), op(2, 3, get, got("1", 5)), op(4, 5, clear, Answer{Found: true}), op(6, 7, get, got("1", 5))}, false},
		"answered below what was read": {[]porcupine.Operation{op(0, 1, set("1"), at(5)), op(2, 3, get, got("1", 6)), op(4, 5, set("2"), at(5))}, false},
	} {
		if got := Check(Documents(), name, c.ops) == nil; got != c.want {
			t.Errorf("%s: linearizable %t, want %t", name, got, c.want)
		}
	}
}

func TestValueModel(t *testing.T) {
	set := func(v string, c Condition) Ask { return Ask{Op: "set", Value: v, If: c} }
	always := Condition{}
	get, remove := Ask{Op: "get"}, Ask{Op: "delete"}
	got := func(v string, rev uint64) Answer { return Answer{Found: rev != 0, Value: v, Revision: rev} }
	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"set, read, removed":   {[]porcupine.Operation{op(0, 1, set("1", always), Answer{Revision: 3}), op(2, 3, get, got("1", 3)), op(4, 5, remove, Answer{Found: true}), op(6, 7, get, got("", 0))}, true},
		"a stale read":         {[]porcupine.Operation{op(0, 1, set("1", always), Answer{Revision: 3}), op(2, 3, set("2", always), Answer{Revision: 4}), op(4, 5, get, got("1", 3))}, false},
		"removed twice":        {[]porcupine.Operation{op(0, 1, set("1", always), Answer{Revision: 3}), op(2, 3, remove, Answer{Found: true}), op(4, 5, remove, Answer{Found: true})}, false},
		"two won":              {[]porcupine.Operation{op(0, 1, set("1", Condition{true, 0}), Answer{Revision: 3}), op(0, 1, set("2", Condition{true, 0}), Answer{Revision: 4})}, false},
		"one won":              {[]porcupine.Operation{op(0, 1, set("1", Condition{true, 0}), Answer{Revision: 3}), op(0, 1, set("2", Condition{true, 0}), Answer{Missed: true, Revision: 3})}, true},
		"removed, unanswered":  {[]porcupine.Operation{op(0, 1, set("1", always), Answer{Revision: 3}), op(2, 0, remove, Unknown{}), op(4, 5, get, got("1", 3)), op(6, 7, get, got("", 0))}, true},
		"removed at its value": {[]porcupine.Operation{op(0, 1, set("1", always), Answer{Revision: 3}), op(2, 3, Ask{Op: "delete", If: Condition{true, 4}}, Answer{Found: true})}, true}, // 3 may be below what stands
		"removed at another":   {[]porcupine.Operation{op(0, 1, set("1", always), Answer{Revision: 3}), op(2, 3, get, got("1", 3)), op(4, 5, Ask{Op: "delete", If: Condition{true, 4}}, Answer{Found: true})}, false},
	} {
		if got := Check(Values(), name, c.ops) == nil; got != c.want {
			t.Errorf("%s: linearizable %t, want %t", name, got, c.want)
		}
	}
}
