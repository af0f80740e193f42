;; Components inside components, nine deep.
(component (component (component (component (component (component (component (component (component )))))))))
