//! Breadth first through every state, so that the first counterexample is a
//! shortest one.
//!
//! Written here and not taken from a model checker: the promise that an end can
//! always be reached needs the whole graph walked backwards, which the one for
//! Rust (stateright) does not offer, and it would bring some forty crates, a
//! web server among them, for a loop and a set.

use super::properties::{Broken, Promise, reaches, waits_visibly};
use super::state::World;
use super::steps::{Model, Step, Taken};

/// A way from the proposal to where a promise is broken.
#[derive(Debug)]
pub struct Counterexample {
    pub broken: Broken,
    pub steps: Vec<Step>,
    pub last: World,
}

/// What was explored.
#[derive(Debug)]
pub struct Explored {
    pub states: usize,
    pub transitions: usize,
    pub depth: usize,
    pub found: Option<Counterexample>,
}

/// The states, each once, and how each was reached first.
struct Graph {
    worlds: Vec<World>,
    came: Vec<(u32, Step)>,
    /// Open addressing over the indices of `worlds`, plus one; 0 is free.
    places: Vec<u32>,
    /// From, to, and whether a person has to do it; only what is no chance.
    edges: Vec<(u32, u32, bool)>,
}

impl Graph {
    fn new(first: World) -> Graph {
        let mut graph =
            Graph { worlds: Vec::new(), came: Vec::new(), places: vec![0; 1 << 12], edges: Vec::new() };
        graph.enter(first, 0, Step::Starts);
        graph
    }

    /// The index of a state; it is new if that is the last one.
    fn enter(&mut self, world: World, from: u32, step: Step) -> u32 {
        if self.worlds.len() * 2 > self.places.len() {
            self.grow();
        }
        let mask = self.places.len() - 1;
        let mut at = hash(&world) & mask;
        loop {
            match self.places[at] {
                0 => break,
                known if self.worlds[known as usize - 1] == world => return known - 1,
                _ => at = (at + 1) & mask,
            }
        }
        self.worlds.push(world);
        self.came.push((from, step));
        self.places[at] = self.worlds.len() as u32;
        self.worlds.len() as u32 - 1
    }

    fn grow(&mut self) {
        let mask = self.places.len() * 4 - 1;
        let mut places = vec![0u32; mask + 1];
        for (index, world) in self.worlds.iter().enumerate() {
            let mut at = hash(world) & mask;
            while places[at] != 0 {
                at = (at + 1) & mask;
            }
            places[at] = index as u32 + 1;
        }
        self.places = places;
    }

    fn way_to(&self, mut index: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        while index != 0 {
            let (from, step) = self.came[index as usize];
            steps.push(step);
            index = from;
        }
        steps.reverse();
        steps
    }

    /// Which states can reach one of `goals` over edges that need nobody, or
    /// with `persons` over all.
    fn can_reach(&self, goals: impl Fn(&World) -> bool, persons: bool) -> Vec<bool> {
        // Edges by where they lead to, counted and laid out.
        let mut starts = vec![0u32; self.worlds.len() + 1];
        let edges = || self.edges.iter().filter(|edge| persons || !edge.2);
        for (_, to, _) in edges() {
            starts[*to as usize + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut filled = starts.clone();
        let mut sources = vec![0u32; starts[starts.len() - 1] as usize];
        for (from, to, _) in edges() {
            let place = &mut filled[*to as usize];
            sources[*place as usize] = *from;
            *place += 1;
        }
        let mut can: Vec<bool> = self.worlds.iter().map(&goals).collect();
        let mut open: Vec<u32> = (0..can.len() as u32).filter(|index| can[*index as usize]).collect();
        while let Some(index) = open.pop() {
            let of = starts[index as usize] as usize..starts[index as usize + 1] as usize;
            for source in &sources[of] {
                if !std::mem::replace(&mut can[*source as usize], true) {
                    open.push(*source);
                }
            }
        }
        can
    }
}

/// Explores a model to its end, or to the first promise that is broken.
pub fn explore(model: &Model) -> Explored {
    let mut graph = Graph::new(model.first());
    let mut taken: Vec<Taken> = Vec::with_capacity(64);
    let (mut at, mut transitions, mut depth, mut level) = (0u32, 0usize, 0usize, 1u32);
    while (at as usize) < graph.worlds.len() {
        if at == level {
            depth += 1;
            level = graph.worlds.len() as u32;
        }
        let before = graph.worlds[at as usize];
        taken.clear();
        model.steps(&before, &mut taken);
        transitions += taken.len();
        for Taken { step, world, broken } in taken.drain(..) {
            if let Some(broken) = broken {
                let mut steps = graph.way_to(at);
                steps.push(step);
                let found = Some(Counterexample { broken, steps, last: world });
                return Explored { states: graph.worlds.len(), transitions, depth, found };
            }
            let index = graph.enter(world, at, step);
            if !step.is_chance(&before) && index != at {
                graph.edges.push((at, index, step.is_personal()));
            }
        }
        at += 1;
    }
    let found = never_ends(model, &graph);
    Explored { states: graph.worlds.len(), transitions, depth, found }
}

/// P9, over the whole graph: without luck and without anybody who was not
/// named, an end or a visible wait is reached; with those who are waited for,
/// an end; and what a scenario is there to show can be seen in it.
fn never_ends(model: &Model, graph: &Graph) -> Option<Counterexample> {
    let ended = |world: &World| world.state.is_terminal();
    let checks: [(&str, Vec<bool>); 2] = [
        (
            "nothing leads on from here to an end or a visible wait",
            graph.can_reach(|world| ended(world) || waits_visibly(model, world), false),
        ),
        ("nobody can bring this to an end, not even who is waited for", graph.can_reach(ended, true)),
    ];
    for (how, can) in checks {
        if let Some(stuck) = can.iter().position(|can| !can) {
            let steps = graph.way_to(stuck as u32);
            let broken = Broken { promise: Promise::P9, how };
            return Some(Counterexample { broken, steps, last: graph.worlds[stuck] });
        }
    }
    let missed = model
        .scenario
        .reaches
        .iter()
        .any(|goal| !graph.worlds.iter().any(|world| reaches(model, world, *goal)));
    missed.then(|| {
        let how = "an end that should be possible is not";
        Counterexample { broken: Broken { promise: Promise::P9, how }, steps: vec![], last: graph.worlds[0] }
    })
}

/// Fast, and good enough for a table of states: FxHash's step over the bytes.
struct Mixer(u64);

impl std::hash::Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }
    fn write_u8(&mut self, byte: u8) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x51_7c_c1_b7_27_22_0a_95);
    }
    fn write_isize(&mut self, value: isize) {
        self.write_u8(value as u8);
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u8(value as u8);
    }
    fn write_u64(&mut self, value: u64) {
        self.write_u8(value as u8);
    }
}

fn hash(world: &World) -> usize {
    use std::hash::{Hash, Hasher};
    let mut mixer = Mixer(0);
    world.hash(&mut mixer);
    (mixer.finish() >> 7) as usize
}
