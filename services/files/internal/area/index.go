package area

import (
	"container/list"
	"sort"
	"sync"
)

// index remembers where the chunks of recently read files stand, so that
// reading a large file piece by piece does not start over for each piece. What
// it holds never becomes wrong: chunks up to a committed tail do not change, and
// chunk ids are not used twice.
type index struct {
	mu    sync.Mutex
	files map[string]*list.Element // chunk id → *chunkList
	lru   *list.List               // most recent first
	total int
}

type chunkList struct {
	id string
	at []place
}

// place is where a chunk begins.
type place struct {
	number int
	seq    uint64
	off    int64 // byte of the file
}

const maxPlaces = 1 << 20 // in all, 24 bytes each

func newIndex() *index { return &index{files: map[string]*list.Element{}, lru: list.New()} }

// floor is the last known chunk that begins at or before byte off.
func (x *index) floor(id string, off int64) place {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.files[id]
	if e == nil {
		return place{}
	}
	x.lru.MoveToFront(e)
	at := e.Value.(*chunkList).at
	i := sort.Search(len(at), func(i int) bool { return at[i].off > off })
	if i == 0 {
		return place{}
	}
	return at[i-1]
}

// note remembers a chunk; chunks that come after a gap are not kept.
func (x *index) note(id string, p place) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.files[id]
	if e == nil {
		if p.number != 0 {
			return
		}
		e = x.lru.PushFront(&chunkList{id: id})
		x.files[id] = e
	}
	l := e.Value.(*chunkList)
	if p.number != len(l.at) {
		return
	}
	l.at = append(l.at, p)
	for x.total++; x.total > maxPlaces; {
		old := x.lru.Remove(x.lru.Back()).(*chunkList)
		delete(x.files, old.id)
		x.total -= len(old.at)
	}
}
