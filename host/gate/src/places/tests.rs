//! Who gets a place when, and what is remembered of whom.

use futures::FutureExt as _;

use super::*;

const LIMITS: PlaceLimits = PlaceLimits { tenant: 3, tool: 3, caller: 3, waiting: 100 };
const ALL: usize = 4;

fn tenant(name: &str) -> TenantId {
    name.parse().unwrap()
}

fn whose(tool: &str, caller: &str) -> Whose {
    Whose { tool: tool.parse().unwrap(), caller: caller.parse().unwrap() }
}

fn now(places: &Places, name: &str) -> Option<Place> {
    places.acquire(&tenant(name), whose("t", "c"), LIMITS).unwrap().now_or_never()
}

#[test]
fn a14_a_tenant_that_wants_everything_leaves_a_place_for_another() {
    let places = Places::new(ALL);
    let held: Vec<Place> = (0..3).map(|_| now(&places, "greedy").unwrap()).collect();
    assert!(now(&places, "greedy").is_none(), "its part is three of four");
    let other = now(&places, "modest");
    assert!(other.is_some(), "who asks later is not behind it");
    assert_eq!((places.held(), places.held_by(&tenant("greedy"), &whose("t", "c")).tenant), (4, 3));
    drop((held, other));
    assert_eq!(places.held(), 0);
    assert!(places.shared.lock().lines.is_empty(), "nobody's name is left");
}

#[test]
fn a14_what_becomes_free_goes_to_each_waiting_tenant_in_turn() {
    let places = Places::new(ALL);
    let mut held: Vec<Place> = ["a", "a", "a", "b"].map(|name| now(&places, name).unwrap()).into();
    let wait = |name: &str| Box::pin(places.acquire(&tenant(name), whose("t", "c"), LIMITS).unwrap());
    // Fifty of one, then one each of two others.
    let mut greedy: Vec<_> = (0..50).map(|_| wait("a")).collect();
    let (mut c, mut d) = (wait("c"), wait("d"));
    held.remove(0);
    let first = greedy.iter_mut().find_map(|waiting| waiting.now_or_never());
    let second = c.as_mut().now_or_never();
    assert!(first.is_none() && second.is_some(), "a was over its part when the others came");
    held.remove(0);
    let again = greedy.iter_mut().find_map(|waiting| waiting.now_or_never());
    let third = d.as_mut().now_or_never();
    assert!(again.is_none() && third.is_some(), "d asked before a could have one more");
    drop(held.pop());
    let fourth = greedy.iter_mut().find_map(|waiting| waiting.now_or_never());
    assert!(fourth.is_some(), "and then it is a's turn");
    drop((second, third, fourth));
}

#[test]
fn a14_who_gives_up_waiting_takes_no_place_and_makes_room_in_the_queue() {
    let limits = PlaceLimits { tenant: 1, waiting: 2, ..LIMITS };
    let places = Places::new(1);
    let held = places.acquire(&tenant("a"), whose("t", "c"), limits).unwrap().now_or_never().unwrap();
    let one = places.acquire(&tenant("a"), whose("t", "c"), limits).unwrap();
    let two = places.acquire(&tenant("a"), whose("t", "c"), limits).unwrap();
    assert!(places.acquire(&tenant("a"), whose("t", "c"), limits).is_err(), "two wait already");
    drop(one);
    let three = places.acquire(&tenant("a"), whose("t", "c"), limits).unwrap();
    drop(two);
    drop(held);
    assert!(three.now_or_never().is_some(), "the two that left are passed over");
    assert_eq!(places.held(), 0);
}

#[test]
fn a_place_that_was_given_and_never_taken_comes_back() {
    let places = Places::new(1);
    let held = now(&places, "a").unwrap();
    let waiting = places.acquire(&tenant("b"), whose("t", "c"), LIMITS).unwrap();
    drop(held);
    assert_eq!(places.held(), 1, "it is b's, who has not looked yet");
    drop(waiting);
    assert_eq!(places.held(), 0);
    assert!(now(&places, "c").is_some());
}

#[tokio::test]
async fn all_free_is_told_when_the_last_one_is_given_back() {
    let places = Places::new(2);
    let (one, two) = (now(&places, "a").unwrap(), now(&places, "b").unwrap());
    let mut drained = Box::pin(places.all_free());
    assert!(drained.as_mut().now_or_never().is_none());
    drop(one);
    assert!(drained.as_mut().now_or_never().is_none());
    drop(two);
    assert!(drained.as_mut().now_or_never().is_some());
}

/// Runs of tenant `a`; one of them at a time is let go.
fn of(places: &Places, tool: &str, caller: &str, limits: PlaceLimits) -> Option<Place> {
    places.acquire(&tenant("a"), whose(tool, caller), limits).unwrap().now_or_never()
}

#[test]
fn i01_a_tool_and_a_caller_have_a_part_of_their_tenants_and_no_more() {
    let limits = PlaceLimits { tenant: 4, tool: 2, caller: 3, waiting: 100 };
    let places = Places::new(10);
    let mut held: Vec<Place> = (0..2).map(|_| of(&places, "slow", "ann", limits).expect("a place")).collect();
    assert!(of(&places, "slow", "ann", limits).is_none(), "the tool has its two");
    assert!(of(&places, "slow", "ben", limits).is_none(), "whoever asks");
    held.push(of(&places, "quick", "ann", limits).expect("another tool's"));
    assert!(of(&places, "third", "ann", limits).is_none(), "the caller has its three");
    held.push(of(&places, "third", "ben", limits).expect("another caller's"));
    assert!(of(&places, "fourth", "cid", limits).is_none(), "the tenant has its four");
    let counted = places.held_by(&tenant("a"), &whose("slow", "ann"));
    assert_eq!(counted, Held { tenant: 4, tool: 2, caller: 3 });
    drop(held);
    assert!(places.shared.lock().lines.is_empty(), "nobody's name is left");
}

#[test]
fn i01_who_waits_for_a_full_tool_is_passed_over_and_served_when_it_is_not() {
    let limits = PlaceLimits { tenant: 4, tool: 1, caller: 4, waiting: 100 };
    let places = Places::new(10);
    let slow = of(&places, "slow", "ann", limits).unwrap();
    let wait = |tool: &str| Box::pin(places.acquire(&tenant("a"), whose(tool, "ann"), limits).unwrap());
    let mut behind: Vec<_> = (0..20).map(|_| wait("slow")).collect();
    let quick = of(&places, "quick", "ann", limits);
    assert!(quick.is_some(), "twenty of another tool in front of it are not in its way");
    drop(slow);
    assert!(behind[0].as_mut().now_or_never().is_some(), "the first of those that waited");
    // It was let go at once, so the next one has it, and so on to the last.
    for waiting in &mut behind[1..] {
        assert!(waiting.as_mut().now_or_never().is_some());
    }
}

#[test]
fn i01_a_place_that_nobody_has_named_yet_counts_against_every_tool() {
    let limits = PlaceLimits { tenant: 4, tool: 2, caller: 2, waiting: 100 };
    let places = Places::new(10);
    let mut one = places.at_once(&tenant("a"), limits).expect("far from any limit");
    let two = places.at_once(&tenant("a"), limits).expect("still below");
    assert!(places.at_once(&tenant("a"), limits).is_none(), "a third may be a tool's third");
    let mut waits = Box::pin(places.acquire(&tenant("a"), whose("t", "c"), limits).unwrap());
    assert!(waits.as_mut().now_or_never().is_none());
    one.is_for(whose("other", "somebody"));
    assert!(waits.as_mut().now_or_never().is_some(), "only one of them may be the tool's now");
    drop((one, two));
    assert!(places.shared.lock().lines.values().all(|line| line.nameless == 0));
}

#[test]
fn i01_a_million_tools_and_callers_leave_no_name_behind() {
    let limits = PlaceLimits { tenant: 3, tool: 2, caller: 2, waiting: 100 };
    let places = Places::new(ALL);
    for n in 0..1_000_000u32 {
        let name = format!("n{n}");
        let run = Whose { tool: name.parse().unwrap(), caller: name.parse().unwrap() };
        let of: TenantId = format!("t{}", n % 1000).parse().unwrap();
        let held = places.acquire(&of, run, limits).unwrap().now_or_never();
        assert!(held.is_some());
    }
    let state = places.shared.lock();
    assert!(state.lines.is_empty() && state.lines.capacity() < 64, "{}", state.lines.capacity());
    assert!(state.turns.is_empty() && state.turns.capacity() < 64);
}
