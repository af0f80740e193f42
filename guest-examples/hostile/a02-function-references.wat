;; References that are never null.
(component (core module (func (param funcref) (drop (ref.as_non_null (local.get 0))))))
