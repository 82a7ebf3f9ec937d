use panoply_core::op::compute::ConvOptions;
use panoply_core::{Backend, OpenOptions, Shape, Tensor, f16};

use super::*;
use crate::{EmulatedBackend, GpuBackend};

fn job(output: Address, bias: Option<Address>, dims: [usize; 4]) -> ConvolutionTask {
    let [batch, filters, height, width] = dims;
    let shape = ConvShape::new([batch, 1, height, width], [filters, 1, 1, 1], &ConvOptions::default()).unwrap();
    let tensors = ConvolutionTensors { input: Address::NULL, weights: Address::NULL, output, bias, residual: None };
    ConvolutionTask::new(shape, DType::F16, ConvolutionKind::Forward, tensors, Activation::Relu)
}

#[test]
fn images_are_turned_and_finished() {
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let info = backend.discover().unwrap().remove(0);
    let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
    let context = engine.context_mut();
    for [matrices, rows, columns] in [[1, 1, 1], [2, 66, 130], [3, 67, 65], [2, 5, 64]] {
        let numbers: Vec<f16> = (0..matrices * rows * columns).map(|n| f16::from_f32((n % 97) as f32 - 40.0)).collect();
        let source = context.input(&Tensor::from_vec(numbers.clone(), [matrices, rows, columns]).unwrap()).unwrap();
        let shape = Shape::new([matrices, columns, rows]).unwrap();
        let target = context.scratch(numbers.len() * 2).unwrap();
        turn(DType::F16, target, source, [matrices, rows, columns], Activation::Relu, context).unwrap();
        let turned = context.download(target, DType::F16, shape).unwrap().to_vec::<f16>().unwrap();
        for (index, number) in turned.iter().enumerate() {
            let (row, column) = (index % rows, index / rows % columns);
            let from = numbers[(index / (rows * columns) * rows + row) * columns + column].to_f32();
            assert_eq!(number.to_f32(), from.max(0.0), "{index} of {rows} x {columns}");
        }
    }
    let dims = [2, 3, 7, 5];
    let numbers: Vec<f16> = (0..210).map(|n| f16::from_f32(n as f32 - 100.0)).collect();
    let output = context.input(&Tensor::from_vec(numbers.clone(), dims).unwrap()).unwrap();
    let bias: Vec<f16> = [1.0, -2.0, 3.0].map(f16::from_f32).to_vec();
    let bias_at = context.input(&Tensor::from_vec(bias.clone(), [3]).unwrap()).unwrap();
    job(output, Some(bias_at), dims).finish(context).unwrap();
    let finished = context.download(output, DType::F16, Shape::new(dims).unwrap()).unwrap().to_vec::<f16>().unwrap();
    for (index, number) in finished.iter().enumerate() {
        let wanted = (numbers[index].to_f32() + bias[index / 35 % 3].to_f32()).max(0.0);
        assert_eq!(number.to_f32(), wanted, "{index}");
    }
}
