//! How much of everything a component may have, all its parts together, and how
//! deep its types may nest. Few bytes buy many of these: a type takes three, and
//! costs whoever reads it some two hundred, here in the host, before any compiler
//! is asked.
//!
//! The largest component that was tried, a Python interpreter with a tool in it,
//! has in 22 MB 1,622 types, 13,485 functions, 2,396 imports and 4,243 exports; a
//! JavaScript one has 12,807 functions and 10,000 data segments.

use wasmparser::{
    BinaryReader, ComponentAlias, ComponentExternName, ComponentImport, ComponentType, ComponentTypeRef,
    CoreType, ModuleTypeDeclaration, Payload,
};

use super::{broken, too_much};
use crate::error::SandboxError;

/// Types of modules and of components. Chosen: twelve times what Python has.
pub(super) const TYPES: u64 = 20_000;
/// Everything else that is counted, each by itself. Chosen: seven times the most
/// that was seen of anything.
pub(super) const ENTRIES: u64 = 100_000;
/// Types of instances and components inside one another. Toolchains write three.
/// The parser descends into them on its own stack, a kilobyte or two each: a file
/// of 3,000 bytes ended the whole process before this was looked at.
pub(super) const TYPE_DEPTH: usize = 16;

/// What has been seen so far.
#[derive(Default)]
pub(super) struct Counts {
    types: u64,
    functions: u64,
    imports: u64,
    exports: u64,
    aliases: u64,
    globals: u64,
    elements: u64,
    data: u64,
}

impl Counts {
    /// Counts what is in a part of `bytes`. Sections are taken at their word before
    /// they are read: who claims too many is refused for that.
    pub(super) fn see(&mut self, bytes: &[u8], payload: &Payload<'_>) -> Result<(), SandboxError> {
        let (seen, what, more) = match payload {
            Payload::TypeSection(section) => return self.types(section.count().into()),
            Payload::CoreTypeSection(section) => {
                self.types(section.count().into())?;
                for ty in section.clone() {
                    self.inside(&ty.map_err(broken)?)?;
                }
                return Ok(());
            }
            Payload::ComponentTypeSection(section) => {
                let range = section.range();
                let part = bytes.get(range.clone()).unwrap_or_default();
                return self.component_types(BinaryReader::new(part, range.start));
            }
            Payload::FunctionSection(section) => (&mut self.functions, "functions", section.count()),
            Payload::ComponentCanonicalSection(section) => {
                (&mut self.functions, "functions", section.count())
            }
            Payload::ImportSection(section) => (&mut self.imports, "imports", section.count()),
            Payload::ComponentImportSection(section) => (&mut self.imports, "imports", section.count()),
            Payload::ExportSection(section) => (&mut self.exports, "exports", section.count()),
            Payload::ComponentExportSection(section) => (&mut self.exports, "exports", section.count()),
            Payload::ComponentAliasSection(section) => (&mut self.aliases, "aliases", section.count()),
            Payload::GlobalSection(section) => (&mut self.globals, "globals", section.count()),
            Payload::ElementSection(section) => (&mut self.elements, "element segments", section.count()),
            Payload::DataSection(section) => (&mut self.data, "data segments", section.count()),
            _ => return Ok(()),
        };
        *seen += u64::from(more);
        if *seen > ENTRIES { Err(too_much(what, *seen, ENTRIES)) } else { Ok(()) }
    }

    fn types(&mut self, more: u64) -> Result<(), SandboxError> {
        self.types = self.types.saturating_add(more);
        if self.types > TYPES { Err(too_much("types", self.types, TYPES)) } else { Ok(()) }
    }

    /// The types in a core type that is counted itself.
    fn inside(&mut self, ty: &CoreType<'_>) -> Result<(), SandboxError> {
        match ty {
            CoreType::Rec(_) => Ok(()),
            CoreType::Module(all) => {
                let types = all.iter().filter(|declared| matches!(declared, ModuleTypeDeclaration::Type(_)));
                self.types(types.count() as u64)
            }
        }
    }

    /// Reads a section of types without descending into any: the lists that are
    /// open are in `left`, each with how many entries of it are still to come. What
    /// stands in them is left to the validator.
    fn component_types(&mut self, mut reader: BinaryReader<'_>) -> Result<(), SandboxError> {
        let count = reader.read_var_u32().map_err(broken)?;
        self.types(count.into())?;
        let mut left = vec![count];
        while let Some(entries) = left.last_mut() {
            let Some(after) = entries.checked_sub(1) else {
                left.pop();
                continue;
            };
            *entries = after;
            if left.len() > 1 {
                match reader.read_u8().map_err(broken)? {
                    0x00 => {
                        self.types(1)?;
                        self.inside(&reader.read().map_err(broken)?)?;
                        continue;
                    }
                    0x01 => self.types(1)?,
                    0x02 => {
                        reader.read::<ComponentAlias<'_>>().map_err(broken)?;
                        continue;
                    }
                    0x03 => {
                        reader.read::<ComponentImport<'_>>().map_err(broken)?;
                        continue;
                    }
                    0x04 => {
                        reader.read::<ComponentExternName<'_>>().map_err(broken)?;
                        reader.read::<ComponentTypeRef>().map_err(broken)?;
                        continue;
                    }
                    other => {
                        let why = format!("0x{other:02x} does not begin a declaration");
                        return Err(SandboxError::refused("a type", why));
                    }
                }
            }
            let mut ahead = reader.clone();
            if matches!(ahead.read_u8().map_err(broken)?, 0x41 | 0x42) {
                left.push(ahead.read_var_u32().map_err(broken)?);
                reader = ahead;
                // The section's own list is no type.
                let depth = left.len() - 1;
                if depth > TYPE_DEPTH {
                    return Err(too_much("types inside types", depth as u64, TYPE_DEPTH as u64));
                }
            } else {
                reader.read::<ComponentType<'_>>().map_err(broken)?;
            }
        }
        Ok(())
    }
}
