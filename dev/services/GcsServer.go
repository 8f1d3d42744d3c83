// Google Cloud Storage, as fake-gcs-server models it, on the loopback only, with the one request of Google's XML API that
// it lacks: PUT of an object, also on the condition that there is none. With -careless it does not look at the condition.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

// What stands first in the paths of Google's other APIs, where a bucket stands here.
var others = map[string]bool{"storage": true, "upload": true, "download": true, "batch": true, "_internal": true}

func main() {
	port := flag.Int("port", 0, "where to listen, on the loopback")
	careless := flag.Bool("careless", false, "overwrite what was to be created only where it is missing")
	flag.Parse()
	address := fmt.Sprintf("127.0.0.1:%d", *port)
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener:  true,
		ExternalURL: "http://" + address,
		PublicHost:  address,
		Writer:      io.Discard,
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(address, &withPut{server.HTTPHandler(), *careless}))
}

// withPut puts objects by the JSON API, and passes on all else.
type withPut struct {
	server   http.Handler
	careless bool
}

func (s *withPut) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, object, found := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if r.Method != http.MethodPut || !found || others[bucket] {
		s.server.ServeHTTP(w, r)
		return
	}
	name, err := url.PathUnescape(object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	asked := url.Values{"uploadType": {"media"}, "name": {name}}
	if generation := r.Header.Get("x-goog-if-generation-match"); generation != "" && !s.careless {
		asked.Set("ifGenerationMatch", generation)
	}
	upload := r.Clone(r.Context())
	upload.Method = http.MethodPost
	upload.URL = &url.URL{Path: "/upload/storage/v1/b/" + bucket + "/o", RawQuery: asked.Encode()}
	upload.RequestURI = upload.URL.RequestURI()
	answer := &kept{header: http.Header{}, status: http.StatusOK}
	s.server.ServeHTTP(answer, upload)
	var made struct {
		Etag       string `json:"etag"`
		Generation string `json:"generation"`
	}
	if answer.status != http.StatusOK || json.Unmarshal(answer.body.Bytes(), &made) != nil {
		w.WriteHeader(answer.status)
		w.Write(answer.body.Bytes())
		return
	}
	w.Header().Set("ETag", `"`+strings.Trim(made.Etag, `"`)+`"`)
	w.Header().Set("x-goog-generation", made.Generation)
	w.WriteHeader(http.StatusOK)
}

// kept is an answer that is not sent as it is.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header               { return k.header }
func (k *kept) WriteHeader(status int)            { k.status = status }
func (k *kept) Write(content []byte) (int, error) { return k.body.Write(content) }
