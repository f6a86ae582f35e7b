package agent

import "container/list"

// receipt is what is known of a wake.
type receipt struct {
	accepted bool
	replies  []string // who waits for its end

	id string
	at *list.Element // among those accepted
}

// memory keeps receipts: all of wakes under way, and of those accepted the most
// recently asked for. It is not safe for concurrent use.
type memory struct {
	most int
	byID map[string]*receipt
	age  *list.List // receipts, the least recently asked for first
}

func newMemory(most int) *memory {
	return &memory{most: most, byID: map[string]*receipt{}, age: list.New()}
}

func (m *memory) put(id string, r *receipt) {
	r.id, r.at = id, m.age.PushBack(r)
	m.byID[id] = r
	for e := m.age.Front(); e != nil && m.age.Len() > m.most; {
		next := e.Next()
		if old := e.Value.(*receipt); old.accepted {
			m.drop(old.id)
		}
		e = next
	}
}

func (m *memory) get(id string) (*receipt, bool) {
	r, ok := m.byID[id]
	if ok {
		m.age.MoveToBack(r.at)
	}
	return r, ok
}

func (m *memory) drop(id string) {
	if r, ok := m.byID[id]; ok {
		m.age.Remove(r.at)
		delete(m.byID, id)
	}
}
