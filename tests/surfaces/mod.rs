//! Everything that can be said to the host, said wrongly: each time a clear answer that says
//! what, where, and what to do.
