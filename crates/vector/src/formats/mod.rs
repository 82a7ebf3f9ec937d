//! Files of vectors: reading and writing them.
