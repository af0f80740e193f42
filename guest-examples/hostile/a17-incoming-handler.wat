;; Imports an interface that is for servers.
(component (import "wasi:http/incoming-handler@0.2.12" (instance)))
