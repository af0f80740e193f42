//! WebAssembly by the byte: shapes that are too large to be written down as text.

/// A number as the format writes it.
pub(crate) fn number(mut n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

pub(crate) fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id][..], &number(content.len()), content].concat()
}

/// So many times the same after their number.
pub(crate) fn many(n: usize, one: &[u8]) -> Vec<u8> {
    [number(n), one.repeat(n)].concat()
}

/// A component of these sections.
pub(crate) fn component(sections: &[Vec<u8>]) -> Vec<u8> {
    [b"\0asm\x0d\0\x01\0", &sections.concat()[..]].concat()
}

/// A component with one module of these sections.
pub(crate) fn module(sections: &[Vec<u8>]) -> Vec<u8> {
    component(&[section(1, &[b"\0asm\x01\0\0\0", &sections.concat()[..]].concat())])
}

/// A component with one function: its locals, as the format groups them, and its code.
pub(crate) fn function(locals: &[u8], code: &[u8]) -> Vec<u8> {
    let body = [locals, code, &[0x0b]].concat();
    module(&[
        section(1, &[1, 0x60, 0, 0]),
        section(3, &[1, 0]),
        section(10, &[&[1][..], &number(body.len()), &body].concat()),
    ])
}
