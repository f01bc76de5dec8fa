package httpjob

import (
	"encoding/base64"
	"encoding/json"
	"html"
	"net/url"
	"slices"
	"strings"

	"github.com/solotick/solotick/configs/secret"
)

// secrets are the texts of a request that no result and no error may show, should they
// come back.
type secrets []string

// What is shorter is found in any text, and hiding it would show that it is there.
const (
	tooShort     = 4 // for what is secret as a whole
	tooShortPart = 8 // for a part of the path or the body, most of which are plain words
)

// secrets are those of a request with the body.
func (c Config) secrets(body string) secrets {
	var all secrets
	add := func(least int, texts []string) {
		for _, v := range texts {
			if len(v) >= least {
				all = append(all, spellings(v)...)
			}
		}
	}
	whole := func(texts ...string) { add(tooShort, texts) }
	part := func(texts ...string) { add(tooShortPart, texts) }
	for _, v := range c.Headers {
		_, token, _ := strings.Cut(v.Reveal(), " ") // Bearer TOKEN
		whole(v.Reveal(), token)
	}
	whole(body)
	part(values(body)...)
	whole(c.URL.Reveal())
	u, err := url.Parse(c.URL.Reveal())
	if err != nil {
		return all
	}
	whole(u.EscapedPath(), u.Path, u.RawQuery)
	part(strings.Split(u.EscapedPath(), "/")...)
	part(strings.Split(u.Path, "/")...)
	for name, values := range u.Query() {
		part(name) // all there is of ?TOKEN
		whole(values...)
	}
	if u.User != nil {
		user := u.User.Username()
		password, _ := u.User.Password()
		// net/http makes the header Authorization of them.
		whole(user, password, u.User.String(), base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
	}
	return all
}

// spellings are the text as it is, and as JSON, a page and a URL write it.
func spellings(v string) []string {
	quoted, _ := json.Marshal(v) // a string can always be written
	all := []string{v, string(quoted[1 : len(quoted)-1]), html.EscapeString(v), url.QueryEscape(v), url.PathEscape(v)}
	slices.Sort(all)
	return slices.Compact(all)
}

// values are the texts of a body that is JSON or a form.
func values(body string) []string {
	var texts []string
	var doc any
	if json.Unmarshal([]byte(body), &doc) == nil {
		var walk func(any)
		walk = func(v any) {
			switch v := v.(type) {
			case string:
				texts = append(texts, v)
			case []any:
				for _, e := range v {
					walk(e)
				}
			case map[string]any:
				for _, e := range v {
					walk(e)
				}
			}
		}
		walk(doc)
		return texts
	}
	form, _ := url.ParseQuery(body) // of what is no form it gives nothing, or the text
	for _, v := range form {
		texts = append(texts, v...)
	}
	return texts
}

func (s secrets) longest() int {
	n := 0
	for _, v := range s {
		n = max(n, len(v))
	}
	return n
}

// hide gives at most the first n bytes of the text, without the secrets. Text has to go
// on behind them by the longest of these. Secrets that overlap go as one: hidden one
// after the other, the first would leave a rest of the second.
func (s secrets) hide(text string, n int) string {
	type span struct{ from, to int }
	var found []span
	for _, v := range s {
		for from := 0; ; from++ {
			i := strings.Index(text[from:], v)
			if i < 0 || from+i >= n {
				break
			}
			from += i
			found = append(found, span{from, from + len(v)})
		}
	}
	slices.SortFunc(found, func(a, b span) int { return a.from - b.from })
	var out strings.Builder
	done := 0
	for _, f := range found {
		if f.from > done || done == 0 {
			out.WriteString(text[done:f.from])
			out.WriteString(secret.Redacted)
		}
		done = max(done, f.to)
	}
	if done < len(text) {
		out.WriteString(text[done:max(done, min(n, len(text)))])
	}
	return out.String()[:min(n, out.Len())]
}
