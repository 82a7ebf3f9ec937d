//! The growing list of nodes of an expression under construction. Equal nodes are stored once.

use super::NODES_MAX;
use super::node::{Node, NodeId};

/// Lists up to this length are searched linearly. Longer lists have an index.
const LINEAR_SEARCH_NODES_MAX: usize = 16;

const FREE: u32 = u32::MAX;

/// Nodes without duplicates, operands before the nodes that use them.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena {
    nodes: Vec<Node>,
    /// An open-addressing hash table of node numbers. Its size is a power of two, and at most half
    /// of its slots are taken. Empty while the list is short.
    index: Vec<u32>,
    overflowed: bool,
}

impl Arena {
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether a node was refused because the arena is full. Such an expression can only be
    /// reported as an error.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns the number of `node`, and adds the node if it is new. In a full arena the result is
    /// an arbitrary node, and [`Arena::overflowed`] becomes true.
    pub fn intern(&mut self, node: Node) -> NodeId {
        if self.index.is_empty() {
            if let Some(place) = self.nodes.iter().position(|known| *known == node) {
                return place as NodeId;
            }
        } else if let Some(id) = self.lookup(node) {
            return id;
        }
        if self.nodes.len() >= NODES_MAX {
            self.overflowed = true;
            return 0;
        }
        self.push(node)
    }

    /// Adds every node of `other` and returns the number of `root` in this arena.
    pub fn absorb(&mut self, other: &Arena, root: NodeId) -> NodeId {
        self.overflowed |= other.overflowed;
        if let [only] = other.nodes[..] {
            return self.intern(only);
        }
        let mut renamed: Vec<NodeId> = Vec::with_capacity(other.nodes.len());
        for node in &other.nodes {
            let here = self.intern(node.renamed(|id| renamed[id as usize]));
            renamed.push(here);
        }
        renamed[root as usize]
    }

    fn push(&mut self, node: Node) -> NodeId {
        let id = self.nodes.len() as NodeId;
        self.nodes.push(node);
        if self.nodes.len() > LINEAR_SEARCH_NODES_MAX {
            if self.nodes.len() * 2 > self.index.len() {
                self.rebuild_index();
            } else {
                self.enter(node, id);
            }
        }
        id
    }

    fn rebuild_index(&mut self) {
        self.index = vec![FREE; (self.nodes.len() * 4).next_power_of_two()];
        for id in 0..self.nodes.len() {
            self.enter(self.nodes[id], id as NodeId);
        }
    }

    fn enter(&mut self, node: Node, id: NodeId) {
        let mask = self.index.len() - 1;
        let mut place = node.stable_hash() as usize & mask;
        while self.index[place] != FREE {
            place = (place + 1) & mask;
        }
        self.index[place] = id;
    }

    fn lookup(&self, node: Node) -> Option<NodeId> {
        let mask = self.index.len() - 1;
        let mut place = node.stable_hash() as usize & mask;
        while self.index[place] != FREE {
            let id = self.index[place];
            if self.nodes[id as usize] == node {
                return Some(id);
            }
            place = (place + 1) & mask;
        }
        None
    }
}
